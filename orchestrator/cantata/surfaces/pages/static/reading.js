/** Reader of a run's graph: reads it again after events that change it, at bounded intervals. */

import { ofRun, read } from "./api.js";
import { makeView } from "./core/live.js";
import { syncClock } from "./ticking.js";

const MIN_INTERVAL_MS = {
  reload: 0, // requested by the user
  now: 300, // its shape changed
  soon: 2000, // figures changed that events do not have
};
const READ_SHARE = 3; // reading takes at most a third of the time
const RETRY_MS = 1500;

/**
 * Make a reader of a run's graph. `onView(view, since)` gets each graph, with the events that came while it was read, and returns how soon
 * it must be read again; `onFault(fault)` gets errors.
 */
export function makeGraphReader(runId, openMaps, { onView, onFault, isFirst }) {
  const ending = new AbortController();
  let timer = 0;
  let due = Infinity;
  let isReading = false;
  let wanted = "";
  let since = [];
  let readAt = -Infinity;
  let spent = 0;

  async function readNow() {
    clearTimeout(timer);
    [due, isReading, wanted, since] = [Infinity, true, "", []];
    const began = performance.now();
    try {
      const query = new URLSearchParams([...openMaps()].map((map) => ["open", map]));
      const graph = await read(`${ofRun(runId, "graph")}?${query}`, { signal: ending.signal });
      syncClock(graph.run.now);
      wanted = sooner(wanted, onView(makeView(graph), since));
    } catch (fault) {
      if (ending.signal.aborted) return;
      onFault(fault);
      if (fault.status === 0 || fault.status >= 500 || fault.status === 429) await retry();
    } finally {
      readAt = performance.now();
      spent = readAt - began;
      isReading = false;
    }
    if (wanted) ask(wanted);
  }

  async function retry() {
    await new Promise((resolve) => (timer = setTimeout(resolve, RETRY_MS)));
    if (isFirst()) return readNow();
    wanted = "now";
    return undefined;
  }

  function ask(when) {
    if (ending.signal.aborted) return;
    if (isReading) {
      wanted = sooner(wanted, when);
      return;
    }
    const at = Math.max(performance.now(), readAt + MIN_INTERVAL_MS[when], readAt + READ_SHARE * spent);
    if (at >= due) return;
    clearTimeout(timer);
    due = at;
    timer = setTimeout(readNow, at - performance.now());
  }

  return {
    first: readNow,
    ask,
    noteEvents(events) {
      if (isReading) since.push(...events);
    },
    end() {
      ending.abort();
      clearTimeout(timer);
    },
  };
}

function sooner(a, b) {
  const order = ["reload", "now", "soon", ""];
  return order[Math.min(order.indexOf(a), order.indexOf(b))];
}
