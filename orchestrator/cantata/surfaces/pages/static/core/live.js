/** Changes of a run's graph and of its agents' replies by events. Pure: each call returns new values. */

import { EVENTS, STEP_OVER } from "./vocabulary.js";

/** Return the graph of the API, with its steps by id. */
export function makeView(graph) {
  return { ...graph, steps: new Map(graph.steps.map((step) => [step.id, step])) };
}

/** Changes of a step by event type, beside the state in vocabulary.js. */
const CHANGES = {
  started: (event, at, step) => ({
    attempt: event.attempt, worker: event.worker, first_at: step.first_at ?? at, started_at: at, ended_at: null, error: null,
  }),
  waiting: (event, at) => ({ awaits: "answer", asked_at: at }),
  uncertain: (event, at) => ({ awaits: "answer", asked_at: at }),
  sleeping: (event, at) => ({ awaits: "time", asked_at: at }),
  rate_limited: () => ({ limited: true }),
  done: (event) => (event.timed_out ? { state: "timed_out" } : {}),
  retry: (event, at, step) => ({ failures: step.failures + 1 }),
  lost: (event, at, step) => ({ crashes: step.crashes + 1 }),
};

/**
 * Return the view after some events, and how soon the graph must be read again: "" (not at all), "soon" (only figures that events do not
 * have, such as tokens), or "now" (its shape).
 */
export function applyEvents(view, events) {
  let stale = "";
  const need = (when) => (stale = stale === "now" ? stale : when);
  const steps = new Map(view.steps);
  const ended = new Set();
  let run = view.run;
  for (const event of events.filter((each) => each.seq > view.offset)) {
    if (event.type === "closed") {
      run = { ...run, status: event.status ?? run.status, failures: event.failures ?? 0, closed_at: event.at_ms / 1000 };
      need("now");
    } else if (EVENTS[event.type]?.state !== null) {
      need(changeStep(steps, event));
      if (event.type === "done" || event.type === "skipped") ended.add(event.step);
    }
    if (event.type === "unserved") need("now"); // its queue may be paused, which the graph says
    if (event.type === "cancelling") run = { ...run, status: "cancelling" };
    if (run.status === "accepted" && event.type === "started") run = { ...run, status: "running" };
  }
  const edges = ended.size ? view.edges.map((edge) => resolved(edge, ended, steps, need)) : view.edges;
  const offset = events.length ? Math.max(view.offset, events.at(-1).seq) : view.offset;
  return { view: { ...view, run, steps, edges, offset }, stale };
}

function changeStep(steps, event) {
  const step = steps.get(event.step);
  const state = EVENTS[event.type]?.state;
  if (!step || !state) return "now";
  const at = event.at_ms / 1000;
  const end = STEP_OVER.has(state) ? { ended_at: at } : {};
  const error = "error" in event ? { error: event.error } : {};
  steps.set(step.id, { ...step, state, ...end, ...error, ...CHANGES[event.type]?.(event, at, step) });
  return event.type === "expanded" || state === "failed" ? "now" : "soon";
}

/** Return an edge after its source ended; events do not say which label of a decision was taken. */
function resolved(edge, ended, steps, need) {
  if (edge.taken !== null || !ended.has(edge.source)) return edge;
  if (steps.get(edge.source).state === "skipped") return { ...edge, taken: false };
  if (edge.label === "done") return { ...edge, taken: true };
  need("now");
  return edge;
}

const MAX_REPLY_CHARS = 100_000; // characters of one attempt

/**
 * Return the streamed replies of steps: a map of step → [{attempt, text, void}], oldest first. An event that discards an attempt voids its
 * pieces.
 */
export function collectReplies(replies, events) {
  const known = new Map(replies);
  for (const { type, step, attempt, text } of events) {
    if (type === "delta") known.set(step, addText(known.get(step) ?? [], attempt, String(text ?? "")));
    else if (EVENTS[type]?.voids && known.has(step)) known.set(step, known.get(step).map((piece) => voidPiece(piece, attempt)));
  }
  return known;
}

function addText(pieces, attempt, text) {
  const last = pieces.at(-1);
  if (!last || last.attempt !== attempt || last.void) return [...pieces, { attempt, text, void: false }];
  return [...pieces.slice(0, -1), { ...last, text: (last.text + text).slice(-MAX_REPLY_CHARS) }];
}

function voidPiece(piece, attempt) {
  return attempt === null || attempt === undefined || piece.attempt === attempt ? { ...piece, void: true } : piece;
}
