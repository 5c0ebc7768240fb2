/** Runs of a filter: pages are read on demand, and read again to stay current. */

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { read } from "./api.js";
import { apiQuery, filterOf, filterQuery } from "./core/route.js";
import { hasGap, merge, countNewer } from "./core/paging.js";
import { runIsOver } from "./core/states.js";
import { redisNow, syncClock } from "./ticking.js";

const PAGE_SIZE = 50;
const REFRESH_MS = 2000;
const TOP_PX = 150; // pixels scrolled, up to which new runs appear without a click

const unread = { list: [], next: undefined, isReading: true, fault: null, news: 0 };

/** Return {list, next, isReading, fault, news, more, fromTop} of a filter. `next` is null when all runs have been read. */
export function useRuns(filter) {
  const query = filterQuery(filter).toString();
  const [state, setState] = useState(unread);
  const reader = useRef(null);
  useEffect(() => {
    setState(unread);
    reader.current = makeListReader(query, setState);
    reader.current.fromTop();
    const timer = setInterval(() => reader.current.refresh(), REFRESH_MS);
    return () => {
      clearInterval(timer);
      reader.current.end();
    };
  }, [query]);
  const more = useCallback(() => reader.current.more(), []);
  const fromTop = useCallback(() => reader.current.fromTop(), []);
  return { ...state, more, fromTop };
}

function makeListReader(query, setState) {
  const ending = new AbortController();
  let current = unread;
  let cursors = []; // the start of each page but the first, and the ids of its runs
  let isBusy = false;
  let round = 0;
  const set = (change) => {
    if (ending.signal.aborted) return;
    current = { ...current, ...change };
    setState(current);
  };
  const page = async (before) => {
    const parameters = apiQuery(filterOf(query), redisNow());
    parameters.set("most", String(PAGE_SIZE));
    if (before) parameters.set("before", before);
    const found = await read(`/runs?${parameters}`, { signal: ending.signal });
    syncClock(found.runs[0]?.now);
    return found;
  };
  const exclusive = async (act) => {
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
    const fresh = countNewer(current.list, found);
    if (scrollY < TOP_PX && hasGap(current.list, found)) return readFirst();
    if (scrollY < TOP_PX || !fresh) {
      set({ list: merge(current.list, found, { isFirst: true }), next: cursors.length ? current.next : found.next, news: 0 });
      return undefined;
    }
    const known = new Set(current.list.map((run) => run.run_id));
    const older = { ...found, runs: found.runs.filter((run) => known.has(run.run_id)) };
    set({ list: older.runs.length ? merge(current.list, older, { isFirst: true }) : current.list, news: fresh });
    return undefined;
  }

  /** Read again the pages around the visible one, and one other page each time, if they have open runs. */
  async function refreshOthers() {
    const visiblePage = Math.floor(scrollY / (document.documentElement.scrollHeight / (cursors.length + 1)));
    round += 1;
    const open = new Set(current.list.filter((run) => !runIsOver(run.status)).map((run) => run.run_id));
    for (const [index, { before, ids }] of cursors.entries()) {
      const isDue = Math.abs(index + 1 - visiblePage) <= 1 || round % cursors.length === index;
      if (isDue && ids.some((id) => open.has(id))) {
        set({ list: merge(current.list, await page(before), { isFirst: false }) });
      }
    }
  }

  return {
    fromTop: () => exclusive(readFirst),
    more: () => exclusive(async () => {
      const before = current.next;
      if (!before) return;
      set({ isReading: true });
      const found = await page(before);
      cursors.push({ before, ids: found.runs.map((run) => run.run_id) });
      set({ list: merge(current.list, found, { isFirst: false }), next: found.next, isReading: false });
    }),
    refresh: () => exclusive(async () => {
      if (document.hidden) return;
      if (current.next === undefined) return readFirst();
      await refreshFirst();
      return refreshOthers();
    }),
    end: () => ending.abort(),
  };
}
