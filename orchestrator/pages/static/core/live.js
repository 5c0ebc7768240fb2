/** What events change in a run's graph and in what is known of its agents' words. Pure: each call answers new values. */

/** The graph that the API sent, with its steps by id. */
export function viewOf(graph) {
  return { ...graph, steps: new Map(graph.steps.map((step) => [step.id, step])) };
}

const CHANGES = {
  started: (event, at, step) => ({
    state: "running", attempt: event.attempt, worker: event.worker, first_at: step.first_at ?? at, started_at: at, ended_at: null, error: null,
  }),
  done: (event, at) => ({ state: event.detail?.timed_out ? "timed_out" : "done", ended_at: at }),
  grown: (event, at) => ({ state: "done", ended_at: at }),
  failed: (event, at) => ({ state: "failed", ended_at: at, error: event.detail?.error ?? null }),
  late: (event, at) => ({ state: "failed", ended_at: at, error: event.detail?.error ?? null }),
  skipped: (event, at) => ({ state: "skipped", ended_at: at }),
  retry: (event, at, step) => ({ state: "waiting", failures: step.failures + 1, error: event.detail?.error ?? null }),
  waits: () => ({ state: "waiting" }),
  lost: (event, at, step) => ({ state: "ready", crashes: step.crashes + 1 }),
  released: () => ({ state: "ready" }),
  refused: () => ({ state: "ready" }),
  waiting: () => ({ state: "waiting_signal" }),
  uncertain: () => ({ state: "waiting_signal" }),
};

/** Events that change no step. */
const TOLD_ONLY = new Set(["accepted", "delta", "warning", "unserved", "fallback", "break", "signal"]);

/**
 * The view after some events, and how soon the graph must be asked for again: "" (not at all), "soon" (only figures that events do not
 * tell, such as tokens), or "now" (its shape).
 */
export function applied(view, events) {
  let stale = "";
  const need = (when) => (stale = stale === "now" ? stale : when);
  const steps = new Map(view.steps);
  const ended = new Set();
  let run = view.run;
  for (const event of events.filter((each) => each.seq > view.offset)) {
    if (event.type === "closed") {
      run = { ...run, status: event.detail?.status ?? run.status, failures: event.detail?.failures ?? 0, closed_at: event.at_ms / 1000 };
      need("now");
    } else if (!TOLD_ONLY.has(event.type)) {
      need(changeStep(steps, event));
      if (event.type === "done" || event.type === "skipped") ended.add(event.step);
    }
    if (run.status === "accepted" && event.type === "started") run = { ...run, status: "running" };
  }
  const edges = ended.size ? view.edges.map((edge) => resolved(edge, ended, steps, need)) : view.edges;
  const offset = events.length ? Math.max(view.offset, events.at(-1).seq) : view.offset;
  return { view: { ...view, run, steps, edges, offset }, stale };
}

function changeStep(steps, event) {
  const step = steps.get(event.step);
  const change = CHANGES[event.type];
  if (!step || !change) return "now";
  steps.set(step.id, { ...step, ...change(event, event.at_ms / 1000, step) });
  if (event.type === "grown" || event.type === "failed" || event.type === "late") return "now";
  return "soon";
}

/** An edge after its source ended; events do not tell which label of a decision was taken. */
function resolved(edge, ended, steps, need) {
  if (edge.taken !== null || !ended.has(edge.source)) return edge;
  if (steps.get(edge.source).state === "skipped") return { ...edge, taken: false };
  if (edge.label === "done") return { ...edge, taken: true };
  need("now");
  return edge;
}

const VOIDS = new Set(["lost", "retry", "released", "fallback", "failed", "late"]);
const MOST_SAID = 100_000; // characters of one attempt

/**
 * What steps said while they worked: a map of step → [{attempt, text, void}], oldest first. Events for what a step said void it when its
 * attempt came to nothing.
 */
export function heard(said, events) {
  const known = new Map(said);
  for (const { type, step, attempt, detail } of events) {
    if (type === "delta") known.set(step, added(known.get(step) ?? [], attempt, String(detail?.text ?? "")));
    else if (VOIDS.has(type) && known.has(step)) known.set(step, known.get(step).map((piece) => voided(piece, attempt)));
  }
  return known;
}

function added(pieces, attempt, text) {
  const last = pieces.at(-1);
  if (!last || last.attempt !== attempt || last.void) return [...pieces, { attempt, text, void: false }];
  return [...pieces.slice(0, -1), { ...last, text: (last.text + text).slice(-MOST_SAID) }];
}

function voided(piece, attempt) {
  return attempt === null || attempt === undefined || piece.attempt === attempt ? { ...piece, void: true } : piece;
}
