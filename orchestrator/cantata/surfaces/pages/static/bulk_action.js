/** A bulk action on all runs of a filter: a preview of their number, then parts of it, one after the other, with the progress. */

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { read, send } from "./api.js";
import { apiQuery } from "./core/route.js";
import { redisNow } from "./ticking.js";

const MAX_LISTED = 100; // refused runs that are listed; the others are counted
const RETRIES = 5; // of a part whose answer was an overload, or was lost: a part may be repeated
const RETRY_MS = 1000;

const idle = { stage: "idle", action: "", preview: null, done: 0, refused: [], count: 0, fault: null };

/** Return {state, ask, confirm, stop, clear}. `state.stage` is "idle", "counting", "asked", "running", "stopped" or "over". */
export function useBulkAction(filter, onDone) {
  const [state, setState] = useState(idle);
  const body = useRef(null);
  const isStopped = useRef(false);
  const change = (part) => setState((before) => ({ ...before, ...part }));
  useEffect(() => () => { isStopped.current = true; }, []);

  const ask = useCallback(async (action, { step = "", value = null } = {}) => {
    setState({ ...idle, stage: "counting", action });
    const query = apiQuery(filter, redisNow());
    const since = query.has("since") ? Number(query.get("since")) : null;
    query.set("action", action);
    if (step) query.set("step", step);
    try {
      const preview = await read(`/runs/bulk/preview?${query}`);
      body.current = { action, statuses: filter.statuses, kind: filter.kind || null, q: filter.text, since, until: preview.until, step, value };
      change({ stage: "asked", preview });
    } catch (fault) {
      change({ stage: "idle", fault });
    }
  }, [JSON.stringify(filter)]);

  const confirm = async () => {
    isStopped.current = false;
    change({ stage: "running" });
    let [before, done, refused, count] = [null, 0, [], 0];
    try {
      do {
        const part = await patiently(() => send("/runs/bulk", { ...body.current, before }), isStopped);
        done += part.done;
        count += part.refused.length;
        refused = [...refused, ...part.refused].slice(0, MAX_LISTED);
        before = part.next;
        change({ done, refused, count });
      } while (before !== null && !isStopped.current);
      change({ stage: before === null ? "over" : "stopped" });
    } catch (fault) {
      change({ stage: "stopped", fault });
    }
    onDone();
  };
  return { state, ask, confirm, stop: () => { isStopped.current = true; }, clear: () => setState(idle) };
}

/** Call until it is answered, if it was refused for a moment; not again once it is stopped: another tenant may be chosen by then. */
async function patiently(call, isStopped) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await call();
    } catch (error) {
      if (tries === RETRIES || ![0, 429, 503].includes(error.status)) throw error;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS * tries));
      if (isStopped.current) throw error;
    }
  }
}
