/** Time line: waiting, earlier attempts and last attempt of each step. Pure. */

/**
 * Return the rows of a time line, by start, and their common span: {rows: [{step, wait, before, work}], from, until}. `wait` (for
 * the first attempt), `before` (from its start to that of the last one, or until now if another is to come) and `work` (the last one) are
 * [start, length] as parts of the span, null if there is none; `waited`, `retried` and `worked` the same in seconds.
 */
export function timesOf(view, now) {
  const from = view.run.created_at;
  const until = Math.max(view.run.closed_at ?? now, from + 0.05);
  const part = (start, end) => [clamp((start - from) / (until - from)), Math.max(0, (Math.min(end, until) - start) / (until - from))];
  const rows = [...view.steps.values()]
    .filter((step) => step.ready_at !== null || step.started_at !== null)
    .sort((a, b) => startOf(a) - startOf(b))
    .map((step) => rowOf(step, part, until));
  return { rows, from, until };
}

const WORKING = new Set(["running", "waiting_signal"]);
const startOf = (step) => Math.min(step.ready_at ?? Infinity, step.started_at ?? Infinity);
const clamp = (x) => Math.min(1, Math.max(0, x));

function rowOf(step, part, until) {
  const { ready_at: ready, started_at: started, ended_at: ended } = step;
  const first = step.first_at ?? started;
  const waitEnds = first ?? ended ?? until;
  const works = started !== null && (ended !== null || WORKING.has(step.state)); // else another attempt is to come
  const last = started === null || works ? started : until;
  return {
    step,
    wait: ready !== null && waitEnds > ready ? part(ready, waitEnds) : null,
    before: first < last ? part(first, last) : null,
    work: works ? part(started, ended ?? until) : null,
    waited: ready === null ? null : waitEnds - ready,
    retried: first < last ? last - first : null,
    worked: works ? (ended ?? until) - started : null,
  };
}

/** Return round ticks of a span of seconds: [seconds from its start, as part of it]. */
export function ticks(seconds) {
  const raw = seconds / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= raw);
  const found = [];
  for (let n = 0; n * size <= seconds * 0.999; n += 1) found.push([n * size, (n * size) / seconds]);
  return found;
}
