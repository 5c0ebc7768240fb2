/** Layout of graphs too large for dagre: a column for each rank, each node as near as possible to its sources. Linear, pure. */

/**
 * Return the boxes by id, and the size of the whole: {boxes, width, height}. `nodes` are [id, [width, height]], `edges` [source, target] without
 * cycles; `along` is the gap between ranks, `aside` between neighbours in a rank.
 */
export function layOut(nodes, edges, { isDown, along, aside, margin }) {
  const before = new Map(nodes.map(([id]) => [id, []]));
  const after = new Map(nodes.map(([id]) => [id, []]));
  for (const [source, target] of edges) {
    before.get(target).push(source);
    after.get(source).push(target);
  }
  const middles = new Map(); // the middle of each node across the ranks
  const boxes = new Map();
  let start = margin;
  for (const layer of layers(nodes, before, after)) {
    const sizes = layer.map(([, [width, height]]) => (isDown ? [height, width] : [width, height]));
    const starts = alignRank(layer.map(([id]) => wantedMiddle(before.get(id), middles)), sizes.map(([, across]) => across), aside);
    layer.forEach(([id], n) => {
      const [length, across] = sizes[n];
      middles.set(id, starts[n] + across / 2);
      boxes.set(id, { start, from: starts[n], length, across });
    });
    start += Math.max(...sizes.map(([length]) => length)) + along;
  }
  return orient(boxes, { isDown, margin, length: start - along + margin });
}

/** Return the nodes by rank: each one after all its sources. */
function layers(nodes, before, after) {
  const left = new Map([...before].map(([id, sources]) => [id, sources.length]));
  const rank = new Map();
  const queue = nodes.map(([id]) => id).filter((id) => !left.get(id));
  queue.forEach((id) => rank.set(id, 0));
  for (let n = 0; n < queue.length; n += 1) {
    for (const target of after.get(queue[n])) {
      rank.set(target, Math.max(rank.get(target) ?? 0, rank.get(queue[n]) + 1));
      left.set(target, left.get(target) - 1);
      if (!left.get(target)) queue.push(target);
    }
  }
  const found = [];
  for (const node of nodes) (found[rank.get(node[0]) ?? 0] ??= []).push(node);
  return found.filter(Boolean);
}

function wantedMiddle(sources, middles) {
  const known = sources.map((id) => middles.get(id)).filter((middle) => middle !== undefined);
  return known.length ? known.reduce((a, b) => a + b) / known.length : 0;
}

/** Return the start of each node of a rank: ordered by wanted middle, without overlap, centred on the wanted middles. */
function alignRank(middles, sizes, aside) {
  const order = middles.map((_, n) => n).sort((a, b) => middles[a] - middles[b] || a - b);
  const starts = [];
  let free = -Infinity;
  let shift = 0;
  for (const n of order) {
    starts[n] = Math.max(free, middles[n] - sizes[n] / 2);
    free = starts[n] + sizes[n] + aside;
    shift += starts[n] + sizes[n] / 2 - middles[n];
  }
  return starts.map((start) => start - shift / order.length);
}

function orient(found, { isDown, margin, length }) {
  const minAcross = Math.min(...[...found.values()].map(({ from }) => from));
  let maxAcross = 0;
  const boxes = new Map();
  for (const [id, { start, from, length: own, across }] of found) {
    const aside = from - minAcross + margin;
    maxAcross = Math.max(maxAcross, aside + across + margin);
    boxes.set(id, isDown ? { x: aside, y: start, width: across, height: own } : { x: start, y: aside, width: own, height: across });
  }
  return { boxes, width: isDown ? maxAcross : length, height: isDown ? length : maxAcross };
}
