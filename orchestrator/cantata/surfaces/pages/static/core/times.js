/** Time line: waiting, earlier attempts and last attempt of each step, and the words for what it waited for. Pure. */

import { duration, shortMoment } from "./format.js";

/**
 * Return the rows of a time line, by start, and their common span: {rows: [{step, wait, before, work, hold}], from, until}. `wait` (in a queue, for
 * the first attempt), `before` (from its start to that of the last one, or until now if another is to come), `work` (the last one) and `hold` (for
 * an answer or a time) are [start, length] as parts of the span, null if there is none; `spent` has the same in seconds.
 */
export function timesOf(view, now) {
  const from = view.run.created_at;
  const until = Math.max(view.run.closed_at ?? now, from + 0.05);
  const part = ([start, end]) => [clamp((start - from) / (until - from)), Math.max(0, (Math.min(end, until) - start) / (until - from))];
  const rows = [...view.steps.values()]
    .filter((step) => step.ready_at !== null || step.started_at !== null)
    .sort((a, b) => startOf(a) - startOf(b))
    .map((step) => {
      const spans = spansOf(step, until);
      const parts = Object.fromEntries(Object.entries(spans).map(([name, span]) => [name, span && span[1] > span[0] ? part(span) : null]));
      return { step, ...parts, work: spans.work && part(spans.work), spent: secondsOf(spans) };
    });
  return { rows, from, until };
}

const WORKING = new Set(["running", "waiting_signal"]);
const startOf = (step) => Math.min(step.ready_at ?? Infinity, step.started_at ?? Infinity);
const clamp = (x) => Math.min(1, Math.max(0, x));
const secondsOf = (spans) => Object.fromEntries(Object.entries(spans).map(([name, span]) => [name, span && span[1] - span[0]]));

/** Return what a step spent its time with, up to `until`: {wait, before, work, hold}, each [begin, end] or null. */
function spansOf(step, until) {
  const { ready_at: ready, started_at: started, ended_at: ended, awaits = null } = step;
  const end = ended ?? until;
  const asked = awaits === null ? null : (step.asked_at ?? ready);
  const hold = asked === null ? null : [asked, end];
  if (asked !== null && started === null) return { wait: null, before: null, work: null, hold }; // it passes no queue
  const first = step.first_at ?? started;
  const works = started !== null && (ended !== null || WORKING.has(step.state)); // else another attempt is to come
  const last = started === null || works ? started : until;
  return {
    wait: ready === null ? null : [ready, first ?? end],
    before: first < last ? [first, last] : null,
    work: works ? [started, asked ?? end] : null,
    hold,
  };
}

/** Return whether shared limits alone were between the first and the last start of a step. */
export const wasHeldBack = (step) => Boolean(step.limited) && !step.failures && !step.crashes;

/** Return what a step spent its time with, and how long, in words: [name, text] each, such as ["Waited", "3.0 s in a queue"]. */
export function spentBy(step, now) {
  const { wait, before, work, hold } = secondsOf(spansOf(step, now));
  const isOpen = hold !== null && step.ended_at === null;
  const since = isOpen ? `since ${shortMoment(step.asked_at ?? step.ready_at, now)} (${duration(hold)})` : "";
  const isSleep = step.awaits === "time";
  return [
    wait !== null && (step.started_at !== null || !step.ended_at) && ["Waited", `${duration(wait)} in a queue`],
    before !== null && (wasHeldBack(step) ? ["Held back", `${duration(before)} by limits`] : ["Retried", `${duration(before)} in earlier attempts${step.limited ? ", limits among them" : ""}`]),
    work !== null && ["Worked", duration(work)],
    hold !== null && (isSleep ? (isOpen ? ["Sleeps", since] : ["Slept", `for ${duration(hold)}`])
      : isOpen ? ["Waits", `for an answer ${since}`] : ["Waited", `for an answer for ${duration(hold)}`]),
  ].filter(Boolean);
}

const CHAR_PX = 7; // of a label in its small type, at most
const PADDING_PX = 6; // of a label, beside its line
const GAP_PX = 20; // from a label to the next line
const rounds = (...units) => units.flatMap((unit) => [unit, 2 * unit, 5 * unit]);
const SIZES = [ // round numbers: decimal ones below half a minute, those of a clock up to half a day, then of days
  ...rounds(0.001, 0.01, 0.1, 1), 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, ...rounds(86_400, 864_000, 8_640_000),
];

/** Return round ticks of a span of seconds that is `width` pixels wide, as many as have room for their labels: [label, part of the span]. */
export function ticks(seconds, width) {
  const sizes = SIZES.filter((size) => (size / seconds) * width > GAP_PX);
  return sizes.map((size) => ticksOf(size, seconds, width)).find((found) => found !== null) ?? [["0", 0]];
}

/** Return the ticks of one size; null if their labels are too near to each other. */
function ticksOf(size, seconds, width) {
  const found = [];
  let free = 0; // pixels from the start at which the next may stand
  for (let at = 0; at <= seconds; at += size) {
    const [label, left] = [at ? duration(at) : "0", (at / seconds) * width];
    const end = left + PADDING_PX + CHAR_PX * label.length;
    if (left < free) return null;
    if (at && end > width) break;
    found.push([label, at / seconds]);
    free = end + GAP_PX;
  }
  return found;
}
