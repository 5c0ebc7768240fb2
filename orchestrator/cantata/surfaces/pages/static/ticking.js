/** Time by Redis's clock, and components that update with it. */

import { useEffect, useState } from "./vendor/htm-preact.js";

let ahead = 0; // seconds that Redis's clock is ahead of this machine's

/** Synchronize with the time in an answer. */
export function syncClock(now) {
  if (typeof now === "number") ahead = now - Date.now() / 1000;
}

/** Return seconds since 1970, by Redis's clock. */
export function redisNow() {
  return Date.now() / 1000 + ahead;
}

/** Return the time, updated every `everyMs`; not updated if `isOn` is false. */
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
