/** A path of the API that is read again and again while the page is visible. */

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { read } from "./api.js";

const REFRESH_MS = 2000;

/** Return {found, fault, refresh} of a path; `found` is null until it was read. Without a path nothing is read. */
export function usePolled(path, everyMs = REFRESH_MS) {
  const [state, setState] = useState({ found: null, fault: null });
  const current = useRef(path);
  current.current = path;
  const refresh = useCallback(async () => {
    if (!path) return;
    try {
      const found = await read(path);
      if (current.current === path) setState({ found, fault: null });
    } catch (fault) {
      if (current.current === path) setState((known) => ({ ...known, fault }));
    }
  }, [path]);
  useEffect(() => {
    refresh();
    const timer = setInterval(() => document.hidden || refresh(), everyMs);
    return () => {
      clearInterval(timer);
      if (current.current === path) current.current = null; // a later path has set its own
    };
  }, [refresh, everyMs, path]);
  return { ...state, refresh };
}
