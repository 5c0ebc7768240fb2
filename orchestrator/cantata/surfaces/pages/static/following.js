/** State of one run: its graph, its events, the replies of its agents. Updated while the page is open. */

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { makeGraphReader } from "./reading.js";
import { applyEvents, collectReplies } from "./core/live.js";
import { append, empty, prepend } from "./core/event_list.js";
import { between, follow } from "./stream.js";

const EARLIER = 500; // events before the current offset, at first and with each "earlier"

const nothing = { view: null, events: empty, replies: new Map(), connection: "live", fault: null };

/** Return {view, events, replies, connection, fault, reload, earlier} of a run; `opened` are the maps whose items are needed. */
export function useRun(runId, opened) {
  const [state, setState] = useState(nothing);
  const reader = useRef(null);
  const maps = useRef(opened);
  maps.current = opened;
  useEffect(() => {
    setState(nothing);
    reader.current = makeRunReader(runId, setState, () => maps.current);
    reader.current.begin();
    return () => reader.current.end();
  }, [runId]);
  useEffect(() => {
    if (state.view) reader.current.reload();
  }, [opened]);
  const reload = useCallback(() => reader.current.reload(), []);
  const earlier = useCallback(() => reader.current.earlier(), []);
  return { ...state, reload, earlier };
}

function makeRunReader(runId, setState, openMaps) {
  let current = nothing;
  let stopFollowing = () => {};
  let ended = false;
  const set = (change) => {
    if (ended) return;
    current = { ...current, ...change };
    setState(current);
  };
  const graphReader = makeGraphReader(runId, openMaps, {
    onView(view, since) {
      const caughtUp = applyEvents(view, since);
      set({ view: caughtUp.view, fault: null });
      return caughtUp.stale;
    },
    onFault: (fault) => set({ fault }),
    isFirst: () => current.view === null,
  });

  function receive(events) {
    const { view, stale } = applyEvents(current.view, events);
    graphReader.noteEvents(events);
    set({ view, events: append(current.events, events), replies: collectReplies(current.replies, events) });
    if (stale) graphReader.ask(stale);
  }

  return {
    async begin() {
      await graphReader.first();
      if (ended || !current.view) return;
      const after = Math.max(0, current.view.offset - EARLIER);
      stopFollowing = follow(runId, after, { onEvents: receive, onConnection: (connection) => set({ connection }) });
    },
    reload: () => graphReader.ask("reload"),
    async earlier() {
      const { first } = current.events;
      if (first === null || first <= 1) return;
      try {
        const earlierOnes = await between(runId, Math.max(0, first - 1 - EARLIER), first);
        set({ events: prepend(current.events, earlierOnes), fault: null });
      } catch (fault) {
        set({ fault });
      }
    },
    end() {
      ended = true;
      graphReader.end();
      stopFollowing();
    },
  };
}
