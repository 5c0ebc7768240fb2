/** Geometry of a displayed graph: visibility, neighbours in a direction, paths of edges. Pure. */

/** Return whether two boxes {x, y, width, height} overlap. */
export function overlap(a, b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

/** Return the smallest box around points. */
export function around(points) {
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, width: Math.max(...xs) - x + 1, height: Math.max(...ys) - y + 1 };
}

/** Return the SVG path of an edge through points; it leaves and arrives along the graph's direction. */
export function pathOf(points, isDown) {
  const [first, ...rest] = points;
  let path = `M${first[0]} ${first[1]}`;
  let [x, y] = first;
  for (const [u, v] of rest) {
    const [mx, my] = [(x + u) / 2, (y + v) / 2];
    path += isDown ? `C${x} ${my} ${u} ${my} ${u} ${v}` : `C${mx} ${y} ${mx} ${v} ${u} ${v}`;
    [x, y] = [u, v];
  }
  return path;
}

const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/** Return the id of the nearest box in the direction of an arrow key; null if there is none. `boxes` is a map of id → box. */
export function neighbour(boxes, from, key) {
  const direction = DIRECTIONS[key];
  const start = boxes.get(from);
  if (!direction || !start) return null;
  let best = null;
  let least = Infinity;
  for (const [id, box] of boxes) {
    const dx = box.x + box.width / 2 - start.x - start.width / 2;
    const dy = box.y + box.height / 2 - start.y - start.height / 2;
    const along = dx * direction[0] + dy * direction[1];
    const aside = Math.abs(dx * direction[1] + dy * direction[0]);
    const far = along + 3 * aside;
    if (id !== from && along > 1 && far < least) [best, least] = [id, far];
  }
  return best;
}
