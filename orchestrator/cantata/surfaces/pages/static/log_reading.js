/** Log lines of a run: read page by page, and on while the run is open; a bounded number of the newest is kept. */

import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ofRun, read } from "./api.js";

export const MAX_LINES = 5000; // that the page keeps
const BLOCK = 250; // lines that are rendered together
const EVERY_MS = 1000;
const SHOW_MS = 3000; // while many pages are read, what was read is shown so often: to render it takes longer than to read it

const none = { lines: [], count: 0, dropped: 0, fault: null, isRead: false };

/**
 * Return {lines, count, dropped, fault, isRead} of a run's log, of a step and of a level or above: the newest lines, each with the number of its
 * `block`, the number of all that were read, and that of older ones that Redis had dropped before. `isRead` when the end was reached once.
 */
export function useLogLines(runId, filter, isOpen) {
  const query = queryOf(filter);
  const [state, setState] = useState(none);
  const open = useRef(isOpen);
  open.current = isOpen;
  useEffect(() => {
    const ending = new AbortController();
    setState(none);
    follow(runId, query, { isOpen: () => open.current, signal: ending.signal, setState });
    return () => ending.abort();
  }, [runId, query]);
  return state;
}

/** Yield the pages of a run's log after a line, to the present end. */
export async function* pagesOf(runId, query, after, signal) {
  for (let from = after; ;) {
    const page = await read(`${ofRun(runId, "logs")}?${query}&after=${from}`, { signal });
    yield page;
    if (page.next === null) return;
    from = page.next;
  }
}

/** Return the query of a filter: {step, level}. */
export function queryOf({ step, level }) {
  return new URLSearchParams({ level, ...(step ? { step } : {}) }).toString();
}

async function follow(runId, query, { isOpen, signal, setState }) {
  let state = none;
  let after = "0-0";
  let shownAt = 0;
  const show = (change) => {
    state = { ...state, ...change };
    if (signal.aborted || (!state.isRead && !state.fault && performance.now() < shownAt + SHOW_MS)) return;
    shownAt = performance.now();
    setState(state);
  };
  while (!signal.aborted) {
    const wasOpen = isOpen();
    try {
      if (!document.hidden || !state.isRead) {
        for await (const page of pagesOf(runId, query, after, signal)) {
          after = page.next ?? after;
          const numbered = page.lines.map((line, n) => ({ ...line, block: Math.floor((state.count + n) / BLOCK) }));
          const lines = numbered.length ? [...state.lines, ...numbered].slice(-MAX_LINES) : state.lines;
          show({ lines, count: state.count + numbered.length, dropped: state.isRead ? state.dropped : page.dropped, fault: null });
        }
        show({ isRead: true });
        if (!wasOpen) return; // its last lines are there
      }
    } catch (fault) {
      if (signal.aborted) return;
      show({ fault });
      if (fault.status === 404 || fault.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}
