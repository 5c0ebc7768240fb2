/** Asks the worker for layouts: one at a time, and of those that wait only the newest. */

import { useEffect, useState } from "../vendor/htm-preact.js";

let desk = null;

/** Start the worker, so that it is ready when a graph is. */
export function prepareLayouts() {
  desk ??= makeDesk();
}

/**
 * The layout of a graph {nodes, edges}: the last one that is ready, {boxes, lines, width, height}, null before the first; and whether the
 * newest could not be made. While `isDown` is null, since nobody knows how much room there is, nothing is laid out.
 */
export function useLayout(graph, shape, isDown) {
  const [laidOut, setLaidOut] = useState({ layout: null, failed: false });
  useEffect(() => {
    prepareLayouts();
    return desk.open(setLaidOut);
  }, []);
  useEffect(() => {
    if (isDown === null) return;
    const edges = graph.edges.map(({ source, target }) => [source, target]);
    desk.ask({ isDown, nodes: graph.nodes.map(({ id, size }) => [id, size]), edges });
  }, [shape, isDown]);
  return laidOut;
}

function makeDesk() {
  const worker = new Worker(new URL("../layout-worker.js", import.meta.url), { type: "module" });
  let taker = null;
  let next = null;
  let busy = null;
  const tell = (what) => {
    if (busy?.taker === taker) taker?.(what);
  };
  const send = () => {
    [busy, next] = [next, null];
    if (busy) worker.postMessage(busy.graph);
  };
  worker.onmessage = ({ data }) => {
    const lines = new Map(busy.graph.edges.map(([source, target], place) => [JSON.stringify([source, target]), data.lines[place]]));
    tell({ layout: { ...data, boxes: new Map(data.boxes), lines }, failed: false });
    send();
  };
  worker.onerror = () => {
    tell((last) => ({ ...last, failed: true }));
    send();
  };
  return {
    /** Give layouts to who asks from now on; answers a function that ends it. */
    open(who) {
      taker = who;
      return () => {
        if (taker === who) taker = null;
      };
    },
    ask(graph) {
      next = { graph, taker };
      if (!busy) send();
    },
  };
}
