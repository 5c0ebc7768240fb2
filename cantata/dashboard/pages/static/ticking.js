/** The time as Redis has it, and components that tick. */

import { useEffect, useState } from "./vendor/htm-preact.js";

let ahead = 0; // seconds that Redis's clock is ahead of this machine's

/** Learn what time it is from an answer. */
export function syncClock(now) {
  if (typeof now === "number") ahead = now - Date.now() / 1000;
}

/** Seconds since 1970, by Redis's clock. */
function redisNow() {
  return Date.now() / 1000 + ahead;
}

/** The time, new every `everyMs`; with `isOn` false it stands still. */
export function useNow(everyMs, isOn = true) {
  const [now, setNow] = useState(redisNow);
  useEffect(() => {
    if (!isOn) return undefined;
    setNow(redisNow());
    const timer = setInterval(() => setNow(redisNow()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs, isOn]);
  return now;
}
