/** Layout of graphs in a worker thread: receives {nodes, edges, isDown, room}, posts {boxes, lines, width, height}. */

import { layOut } from "./core/layering.js";
import { wrapped } from "./core/wrapping.js";
import { Graph, layout } from "./vendor/dagre.js";

const MAX_DAGRE_NODES = 300; // dagre takes 0.1 s for so many, seconds for 2,000; a chain of 2,000 exceeds its recursion depth
const RANK_GAP = 46;
const NODE_GAP = 18;
const MARGIN = 24;

self.onmessage = ({ data: { nodes, edges, isDown, room } }) => {
  const laidOut = nodes.length > MAX_DAGRE_NODES ? byRanks(nodes, edges, isDown) : byDagre(nodes, edges, isDown);
  const { boxes, points } = laidOut;
  const lines = edges.map(([source, target]) => line(boxes.get(source), points(source, target), boxes.get(target), isDown));
  const rows = room && wrapped(laidOut, room);
  if (rows) self.postMessage({ ...rows, lineOf: null, boxes: [...rows.boxes], lines: lines.map((each, n) => rows.lineOf(...edges[n], each)) });
  else self.postMessage({ boxes: [...boxes], lines, width: laidOut.width, height: laidOut.height });
};

function byDagre(nodes, edges, isDown) {
  const graph = new Graph();
  // The tight tree takes a quarter of the time that dagre's default takes, and its long rows are as straight.
  graph.setGraph({
    rankdir: isDown ? "TB" : "LR", ranker: "tight-tree", nodesep: NODE_GAP, ranksep: RANK_GAP, edgesep: 10, marginx: MARGIN, marginy: MARGIN,
  });
  for (const [name, [width, height]] of nodes) graph.setNode(name, { width, height });
  for (const [source, target] of edges) graph.setEdge(source, target, {});
  layout(graph);
  const boxes = new Map(nodes.map(([name]) => {
    const { x, y, width, height } = graph.node(name);
    return [name, { x: x - width / 2, y: y - height / 2, width, height }];
  }));
  const { width, height } = graph.graph();
  return { boxes, points: (source, target) => graph.edge(source, target).points, width: Math.max(0, width), height: Math.max(0, height) };
}

function byRanks(nodes, edges, isDown) {
  return { ...layOut(nodes, edges, { isDown, along: RANK_GAP, aside: NODE_GAP, margin: MARGIN }), points: () => [] };
}

/** Return the points of an edge: from the middle of the source's end to the middle of the target's start, past other ranks as dagre says. */
function line(from, points, to, isDown) {
  const start = isDown ? [from.x + from.width / 2, from.y + from.height] : [from.x + from.width, from.y + from.height / 2];
  const end = isDown ? [to.x + to.width / 2, to.y] : [to.x, to.y + to.height / 2];
  const between = points.length > 3 ? points.slice(1, -1).map(({ x, y }) => [x, y]) : [];
  return [start, ...between, end];
}
