/** The states of runs and steps: their word, their tone (what colour they have) and their icon (what shape). Pure. */

import { RUN_OVER } from "./vocabulary.js";

const RUN = {
  accepted: { word: "Pending", tone: "idle", icon: "ring" },
  running: { word: "Running", tone: "busy", icon: "run" },
  succeeded: { word: "Succeeded", tone: "good", icon: "check" },
  failed: { word: "Failed", tone: "bad", icon: "cross" },
  cancelled: { word: "Cancelled", tone: "idle", icon: "stop" },
  timed_out: { word: "Timed out", tone: "bad", icon: "clock" },
  exhausted: { word: "Exhausted", tone: "wait", icon: "spent" },
};

const STEP = {
  waiting: { word: "Pending", tone: "idle", icon: "ring" },
  ready: { word: "Ready", tone: "wait", icon: "dot" },
  sent: { word: "In queue", tone: "wait", icon: "dot" },
  running: { word: "Running", tone: "busy", icon: "run" },
  waiting_signal: { word: "Waiting", tone: "wait", icon: "hand" },
  done: { word: "Done", tone: "good", icon: "check" },
  failed: { word: "Failed", tone: "bad", icon: "cross" },
  skipped: { word: "Skipped", tone: "idle", icon: "dash" },
  timed_out: { word: "Timed out", tone: "wait", icon: "clock" },
};

/** What a run is shown as that went to its end though steps of it failed. */
const WITH_FAILURES = { word: "Succeeded with failures", tone: "wait", icon: "check" };

export const RUN_STATUSES = Object.keys(RUN);

/** How a run's status is shown; a word of a newer Cantata as it is. */
export function ofRun(status, failures = 0) {
  if (status === "succeeded" && failures) return WITH_FAILURES;
  return RUN[status] ?? { word: String(status), tone: "idle", icon: "ring" };
}

/** How a step's state is shown. */
export function ofStep(state) {
  return STEP[state] ?? { word: String(state), tone: "idle", icon: "ring" };
}

const TO_COME = new Set(["waiting", "ready", "sent"]);

/** The number of a step's attempt: of the one to come, if it has to try again. */
export function attemptOf(step) {
  return step.attempt && TO_COME.has(step.state) ? step.attempt + 1 : step.attempt;
}

/** Whether nothing more happens to the run. */
export const runIsOver = (status) => RUN_OVER.has(status);
