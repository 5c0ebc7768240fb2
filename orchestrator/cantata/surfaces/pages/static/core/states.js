/** States of runs and steps: label, tone (colour) and icon (shape). Pure. */

import { RUN_OVER } from "./vocabulary.js";

const RUN = {
  accepted: { label: "Accepted", tone: "idle", icon: "ring" },
  running: { label: "Running", tone: "busy", icon: "run" },
  waiting: { label: "Waiting", tone: "wait", icon: "hand" },
  cancelling: { label: "Cancelling", tone: "wait", icon: "stop" },
  succeeded: { label: "Succeeded", tone: "good", icon: "check" },
  failed: { label: "Failed", tone: "bad", icon: "cross" },
  cancelled: { label: "Cancelled", tone: "idle", icon: "stop" },
  timed_out: { label: "Timed out", tone: "bad", icon: "clock" },
  exhausted: { label: "Exhausted", tone: "wait", icon: "spent" },
};

const STEP = {
  waiting: { label: "Pending", tone: "idle", icon: "ring" },
  ready: { label: "Ready", tone: "wait", icon: "dot" },
  sent: { label: "In queue", tone: "wait", icon: "dot" },
  running: { label: "Running", tone: "busy", icon: "run" },
  waiting_signal: { label: "Waits for an answer", tone: "wait", icon: "hand" },
  done: { label: "Done", tone: "good", icon: "check" },
  failed: { label: "Failed", tone: "bad", icon: "cross" },
  skipped: { label: "Skipped", tone: "idle", icon: "dash" },
  timed_out: { label: "Timed out", tone: "wait", icon: "clock" },
};

const BATCH = {
  running: { label: "Running", tone: "busy", icon: "run" },
  paused: { label: "Paused", tone: "wait", icon: "hand" },
  budget_spent: { label: "Budget spent", tone: "wait", icon: "spent" },
  cancelled: { label: "Cancelled", tone: "idle", icon: "stop" },
  done: { label: "Done", tone: "good", icon: "check" },
  unreadable: { label: "Unreadable", tone: "bad", icon: "cross" },
};

/** Of a run that succeeded although steps of it failed, and of a batch that is done although rows of it failed. */
const WITH_FAILURES = { label: "Succeeded with failures", tone: "wait", icon: "spent" };
const WITH_FAILED_ROWS = { label: "Done with failures", tone: "wait", icon: "spent" };

export const RUN_STATUSES = Object.keys(RUN);

/** Return the label, tone and icon of a run's status; an unknown status of a newer version has itself as label. */
export function ofRun(status, failures = 0) {
  if (status === "succeeded" && failures) return WITH_FAILURES;
  return RUN[status] ?? { label: String(status), tone: "idle", icon: "ring" };
}

/** Return the label, tone and icon of a batch's state; of one that is done, by its failed rows. */
export function ofBatch({ state, failed, delivered }) {
  if (state === "done" && failed) return failed >= delivered ? RUN.failed : WITH_FAILED_ROWS;
  return BATCH[state] ?? { label: String(state), tone: "idle", icon: "ring" };
}

/** Return whether a batch is done or cancelled. */
export const batchIsOver = (state) => state === "done" || state === "cancelled";

/** Return the share of a batch's rows that were delivered, from 0 to 1; 0 while their number is not known. */
export function share(batch) {
  if (batch.total === null) return 0;
  return batch.total ? Math.min(1, batch.delivered / batch.total) : 1;
}

const SLEEPS = { label: "Sleeps", tone: "idle", icon: "clock" };
const HELD_BACK = { label: "Held back by a limit", tone: "wait", icon: "clock" };
const TO_RETRY = { label: "Waits to retry", tone: "wait", icon: "clock" };

/** Return the label, tone and icon of a step, by its state and what it waits for. */
export function ofStep({ state, awaits = null, started_at: started = null, failures = 0, limited = false }) {
  if (state === "running" && awaits === "time") return SLEEPS;
  if (state === "waiting" && started !== null) return limited && !failures ? HELD_BACK : TO_RETRY;
  return STEP[state] ?? { label: String(state), tone: "idle", icon: "ring" };
}

const TO_COME = new Set(["waiting", "ready", "sent"]);

/** Return the number of a step's attempt; of the next one, if it is retried. */
export function attemptOf(step) {
  return step.attempt && TO_COME.has(step.state) ? step.attempt + 1 : step.attempt;
}

/** Whether a retry of a run with this status has something to do. */
export const canRetry = (status) => RUN_OVER.has(status) && status !== "succeeded";

/** Return whether a run is closed. */
export const runIsOver = (status) => RUN_OVER.has(status);
