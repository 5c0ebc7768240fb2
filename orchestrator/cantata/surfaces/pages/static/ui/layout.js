/** Requests of layouts from the worker: one at a time, and of those that wait only the newest. */

import { useEffect, useState } from "../vendor/htm-preact.js";

let queue = null;

/** Start the worker, so that it is ready for the first graph. */
export function prepareLayouts() {
  queue ??= makeLayoutQueue();
}

/**
 * Return the last layout of a graph {nodes, edges}: {boxes, lines, width, height}, null before the first; and whether the newest failed.
 * While `isDown` is null, since the available width is unknown, nothing is laid out. With `room`, a long graph is wrapped into it.
 */
export function useLayout(graph, shape, isDown, room) {
  const [laidOut, setLaidOut] = useState({ layout: null, failed: false });
  useEffect(() => {
    prepareLayouts();
    return queue.open(setLaidOut);
  }, []);
  useEffect(() => {
    if (isDown === null) return;
    const edges = graph.edges.map(({ source, target }) => [source, target]);
    queue.ask({ isDown, room, nodes: graph.nodes.map(({ id, size }) => [id, size]), edges });
  }, [shape, isDown, room?.width, room?.height]);
  return laidOut;
}

function makeLayoutQueue() {
  const worker = new Worker(new URL("../layout-worker.js", import.meta.url), { type: "module" });
  let receiver = null;
  let next = null;
  let busy = null;
  const publish = (what) => {
    if (busy?.receiver === receiver) receiver?.(what);
  };
  const send = () => {
    [busy, next] = [next, null];
    if (busy) worker.postMessage(busy.graph);
  };
  worker.onmessage = ({ data }) => {
    const lines = new Map(busy.graph.edges.map(([source, target], index) => [JSON.stringify([source, target]), data.lines[index]]));
    publish({ layout: { ...data, boxes: new Map(data.boxes), lines }, failed: false });
    send();
  };
  worker.onerror = () => {
    publish((last) => ({ ...last, failed: true }));
    send();
  };
  return {
    /** Send layouts to `callback`; return a function that stops it. */
    open(callback) {
      receiver = callback;
      return () => {
        if (receiver === callback) receiver = null;
      };
    },
    ask(graph) {
      next = { graph, receiver };
      if (!busy) send();
    },
  };
}
