/** The runs of a filter: pages read as they are wanted, and read again so that they stay true. */

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { read } from "./api.js";
import { filterQuery } from "./core/route.js";
import { hasGap, merged, newer } from "./core/paging.js";
import { runIsOver } from "./core/states.js";
import { learn } from "./ticking.js";

const PAGE = 50;
const REFRESH_MS = 2000;
const AT_TOP = 150; // pixels that may be scrolled for new runs to appear without asking

const unread = { list: [], next: undefined, isReading: true, fault: null, news: 0 };

/** {list, next, isReading, fault, news, more, fromTop} of a filter. `next` is null when all have been read. */
export function useRuns(filter) {
  const query = filterQuery(filter).toString();
  const [state, setState] = useState(unread);
  const desk = useRef(null);
  useEffect(() => {
    setState(unread);
    desk.current = makeDesk(query, setState);
    desk.current.fromTop();
    const timer = setInterval(() => desk.current.refresh(), REFRESH_MS);
    return () => {
      clearInterval(timer);
      desk.current.end();
    };
  }, [query]);
  const more = useCallback(() => desk.current.more(), []);
  const fromTop = useCallback(() => desk.current.fromTop(), []);
  return { ...state, more, fromTop };
}

function makeDesk(query, setState) {
  const ending = new AbortController();
  let current = unread;
  let cursors = []; // where each page but the first begins, and the ids of its runs
  let isBusy = false;
  let turn = 0;
  const set = (change) => {
    if (ending.signal.aborted) return;
    current = { ...current, ...change };
    setState(current);
  };
  const page = async (before) => {
    const asked = new URLSearchParams(query);
    asked.set("most", String(PAGE));
    if (before) asked.set("before", before);
    const found = await read(`/runs?${asked}`, { signal: ending.signal });
    learn(found.runs[0]?.now);
    return found;
  };
  const alone = async (act) => {
    if (isBusy || ending.signal.aborted) return;
    isBusy = true;
    try {
      await act();
      if (current.fault) set({ fault: null });
    } catch (fault) {
      if (fault.name !== "AbortError") set({ fault, isReading: false });
    } finally {
      isBusy = false;
    }
  };

  async function readFirst() {
    cursors = [];
    const found = await page();
    set({ list: found.runs, next: found.next, isReading: false, news: 0 });
  }

  async function refreshFirst() {
    const found = await page();
    const fresh = newer(current.list, found);
    if (scrollY < AT_TOP && hasGap(current.list, found)) return readFirst();
    if (scrollY < AT_TOP || !fresh) {
      set({ list: merged(current.list, found, { isFirst: true }), next: cursors.length ? current.next : found.next, news: 0 });
      return undefined;
    }
    const known = new Set(current.list.map((run) => run.run_id));
    const older = { ...found, runs: found.runs.filter((run) => known.has(run.run_id)) };
    set({ list: older.runs.length ? merged(current.list, older, { isFirst: true }) : current.list, news: fresh });
    return undefined;
  }

  /** Of the pages further down those that are looked at, and one other each time, if they still have runs under way. */
  async function refreshOthers() {
    const looked = Math.floor(scrollY / (document.documentElement.scrollHeight / (cursors.length + 1)));
    turn += 1;
    const open = new Set(current.list.filter((run) => !runIsOver(run.status)).map((run) => run.run_id));
    for (const [place, { before, ids }] of cursors.entries()) {
      const isDue = Math.abs(place + 1 - looked) <= 1 || turn % cursors.length === place;
      if (isDue && ids.some((id) => open.has(id))) {
        set({ list: merged(current.list, await page(before), { isFirst: false }) });
      }
    }
  }

  return {
    fromTop: () => alone(readFirst),
    more: () => alone(async () => {
      const before = current.next;
      if (!before) return;
      set({ isReading: true });
      const found = await page(before);
      cursors.push({ before, ids: found.runs.map((run) => run.run_id) });
      set({ list: merged(current.list, found, { isFirst: false }), next: found.next, isReading: false });
    }),
    refresh: () => alone(async () => {
      if (document.hidden) return;
      if (current.next === undefined) return readFirst();
      await refreshFirst();
      return refreshOthers();
    }),
    end: () => ending.abort(),
  };
}
