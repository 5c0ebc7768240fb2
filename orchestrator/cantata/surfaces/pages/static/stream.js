/** Event stream of a run: reads it, and reconnects at the same offset when the connection is lost. */

import { ofRun, open, Rejection } from "./api.js";
import { parse } from "./core/json.js";
import { makeParser } from "./core/sse.js";

const FIRST_WAIT_MS = 300;
const MAX_WAIT_MS = 8000;
const IDLE_TIMEOUT_MS = 45_000; // the server sends something every 15 s, so a stream that is silent for longer is dead
const BATCH_MS = 80; // events within this time are delivered together

/**
 * Follow a run's events after an offset, up to `closed`. `onEvents(events)` gets them in order, each once; `onConnection(state)` the state of
 * the connection: "live", "lost", "over" or "gone". Return a function that stops it.
 */
export function follow(runId, after, { onEvents, onConnection }) {
  const ending = new AbortController();
  const box = batches(onEvents);
  run(runId, after, { onEvents: box.add, onConnection, signal: ending.signal });
  return () => {
    ending.abort();
    box.end();
  };
}

/** Return the events of a run after an offset up to another one. */
export async function between(runId, after, until) {
  const found = [];
  const ending = new AbortController();
  await readStream(runId, after, ending.signal, (event) => {
    if (event.seq < until) found.push(event);
    if (event.seq >= until - 1) ending.abort();
  }).catch((error) => {
    if (!ending.signal.aborted) throw error;
  });
  return found;
}

async function run(runId, after, { onEvents, onConnection, signal }) {
  let offset = after;
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    let closed = false;
    try {
      closed = await readStream(runId, offset, signal, (event) => {
        if (event.seq <= offset) return;
        offset = event.seq;
        wait = FIRST_WAIT_MS;
        onEvents(event);
      }, () => onConnection("live"));
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Rejection && (error.status === 404 || error.status === 401)) {
        onConnection(error.status === 404 ? "gone" : "lost");
        return;
      }
    }
    if (closed) {
      onConnection("over");
      return;
    }
    if (signal.aborted) return;
    onConnection("lost");
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(MAX_WAIT_MS, wait * 2);
  }
}

/** Read a stream to its end; return whether the run is closed. */
async function readStream(runId, after, signal, onEvents, opened = () => {}) {
  const silence = new AbortController();
  const both = AbortSignal.any([signal, silence.signal]);
  const headers = { Accept: "text/event-stream", ...(after ? { "Last-Event-ID": String(after) } : {}) };
  const response = await open(`${ofRun(runId, "events")}`, { headers, signal: both });
  opened();
  if (response.status === 204) return true;
  const take = makeParser();
  const texts = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let timer = setTimeout(() => silence.abort(), IDLE_TIMEOUT_MS);
  try {
    for (;;) {
      const { value, done } = await texts.read();
      if (done) return false;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), IDLE_TIMEOUT_MS);
      for (const message of take(value)) {
        if (message.event === "error" || message.id === undefined) continue;
        const event = parse(message.data);
        onEvents(event);
        if (event.type === "closed") return true;
      }
    }
  } finally {
    clearTimeout(timer);
    texts.cancel().catch(() => {});
  }
}

function batches(onEvents) {
  let waiting = [];
  let timer = 0;
  const flush = () => {
    timer = 0;
    const found = waiting;
    waiting = [];
    if (found.length) onEvents(found);
  };
  return {
    add(event) {
      waiting.push(event);
      timer ||= setTimeout(flush, BATCH_MS);
    },
    end: () => clearTimeout(timer),
  };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
