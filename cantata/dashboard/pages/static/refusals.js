/** What the token may not do with a run, and why: the server knows, and the buttons say so. */

import { useEffect, useState } from "./vendor/htm-preact.js";
import { ofRun, read } from "./api.js";

const NONE = {};

/** The reasons by act: `cancel`, `retry`, `fork`, `signal`; a signal is for `stepId`. Until they are known nothing is refused here. */
export function useRefusals(runId, stepId = null) {
  const [refusals, setRefusals] = useState(NONE);
  useEffect(() => {
    const ending = new AbortController();
    const query = stepId === null ? "" : `?step=${encodeURIComponent(stepId)}`;
    read(ofRun(runId, "refusals") + query, { signal: ending.signal }).then(setRefusals, () => {}); // the act itself says what is wrong
    return () => ending.abort();
  }, [runId, stepId]);
  return refusals;
}
