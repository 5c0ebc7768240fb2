/** Event types, and what states are. Written from Python by `python -m tests.acceptance.write_events`. */

/** Type → the state it puts its step in, if any, and whether it voids what the attempt streamed. */
export const EVENTS = {
  accepted: { state: null, voids: false },
  started: { state: "running", voids: false },
  dispatched: { state: null, voids: false },
  done: { state: "done", voids: false },
  expanded: { state: "done", voids: false },
  failed: { state: "failed", voids: true },
  missed_deadline: { state: "failed", voids: true },
  skipped: { state: "skipped", voids: false },
  retry: { state: "waiting", voids: true },
  rate_limited: { state: "waiting", voids: false },
  lost: { state: "ready", voids: true },
  released: { state: "ready", voids: true },
  refused: { state: "ready", voids: false },
  uncertain: { state: "waiting_signal", voids: false },
  waiting: { state: "waiting_signal", voids: false },
  reminded: { state: null, voids: false },
  escalated: { state: null, voids: false },
  sleeping: { state: "running", voids: false },
  signal: { state: null, voids: false },
  delta: { state: null, voids: false },
  fallback: { state: null, voids: true },
  break: { state: null, voids: false },
  warning: { state: null, voids: false },
  unserved: { state: null, voids: false },
  parked: { state: null, voids: false },
  unparked: { state: null, voids: false },
  cancelling: { state: null, voids: false },
  webhook: { state: null, voids: false },
  closed: { state: null, voids: false },
};

/** State of a step → what it counts as; in any other state as waiting, or as running once it began. */
export const COUNTED_AS = {"running": "running", "waiting_signal": "running", "done": "done", "timed_out": "done", "failed": "failed", "skipped": "skipped"};

export const STEP_OVER = new Set(["done", "failed", "skipped"]);

export const RUN_OVER = new Set(["cancelled", "exhausted", "failed", "succeeded", "timed_out"]);
