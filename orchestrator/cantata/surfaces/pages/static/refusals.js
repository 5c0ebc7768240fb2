/** Reasons why the token may not do something with a run, for the buttons. */

import { useEffect, useState } from "./vendor/htm-preact.js";
import { ofRun, read } from "./api.js";

const NONE = {};

/** Return the reasons by action: `cancel`, `retry`, `fork`, `signal`; a signal is for `stepId`. There are none until they are loaded. */
export function useRefusals(runId, stepId = null) {
  const [refusals, setRefusals] = useState(NONE);
  useEffect(() => {
    const ending = new AbortController();
    const query = stepId === null ? "" : `?step=${encodeURIComponent(stepId)}`;
    read(ofRun(runId, "refusals") + query, { signal: ending.signal }).then(setRefusals, () => {}); // the action itself reports the error
    return () => ending.abort();
  }, [runId, stepId]);
  return refusals;
}
