/** Lays graphs out, beside the page so that it never waits: takes {nodes, edges, isDown}, answers {boxes, lines, width, height}. */

import { Graph, layout } from "./vendor/dagre.js";

const BETWEEN = { nodesep: 18, ranksep: 46, edgesep: 10, marginx: 24, marginy: 24 };

self.onmessage = ({ data: { nodes, edges, isDown } }) => {
  const graph = new Graph();
  // The tight tree takes a quarter of the time that dagre's default takes, and its long rows are as straight.
  graph.setGraph({ ...BETWEEN, rankdir: isDown ? "TB" : "LR", ranker: "tight-tree" });
  for (const [name, [width, height]] of nodes) graph.setNode(name, { width, height });
  for (const [source, target] of edges) graph.setEdge(source, target, {});
  layout(graph);
  const boxes = nodes.map(([name]) => {
    const { x, y, width, height } = graph.node(name);
    return [name, { x: x - width / 2, y: y - height / 2, width, height }];
  });
  const places = new Map(boxes);
  const lines = edges.map(([source, target]) => line(places.get(source), graph.edge(source, target).points, places.get(target), isDown));
  const { width, height } = graph.graph();
  self.postMessage({ boxes, lines, width: Math.max(0, width), height: Math.max(0, height) });
};

/** From the middle of a node's end to the middle of the next one's beginning; past other ranks by the way that dagre found free. */
function line(from, points, to, isDown) {
  const start = isDown ? [from.x + from.width / 2, from.y + from.height] : [from.x + from.width, from.y + from.height / 2];
  const end = isDown ? [to.x + to.width / 2, to.y] : [to.x, to.y + to.height / 2];
  const between = points.length > 3 ? points.slice(1, -1).map(({ x, y }) => [x, y]) : [];
  return [start, ...between, end];
}
