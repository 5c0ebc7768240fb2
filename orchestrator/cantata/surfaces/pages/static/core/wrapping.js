/** Wrapping of a graph that is too long for one row, like a text into lines. Pure. */

const ROW_GAP = 44;
const MIN_GAIN = 1.25; // a wrapped graph must be so much larger on the screen
const TURN = 20; // pixels beside a node at which an edge to another row turns

/**
 * Return a layout from left to right whose ranks are in as many rows as show it largest in `room`: {boxes, lineOf, width, height}. `lineOf(from, to,
 * line)` is the line of an edge between two boxes, given the line of the unwrapped layout. Null if wrapping does not help.
 */
export function wrapped({ boxes, width, height }, room) {
  const middles = [...new Set([...boxes.values()].map((box) => Math.round(box.x + box.width / 2)))].sort((a, b) => a - b);
  const fit = (rows) => Math.min(1, room.width / (width / rows + 60), room.height / (rows * (height + ROW_GAP) - ROW_GAP));
  let rows = 1;
  for (let more = 2; more <= middles.length; more += 1) if (fit(more) > fit(rows)) rows = more;
  if (rows === 1 || fit(rows) < MIN_GAIN * fit(1)) return null;
  const perRow = Math.ceil(middles.length / rows);
  const rowOf = (box) => Math.floor(middles.indexOf(Math.round(box.x + box.width / 2)) / perRow);
  const starts = new Map();
  const margin = Math.min(...[...boxes.values()].map((box) => box.x));
  for (const box of boxes.values()) starts.set(rowOf(box), Math.min(starts.get(rowOf(box)) ?? Infinity, box.x));
  const shift = (row) => [margin - starts.get(row), row * (height + ROW_GAP)];
  const moved = new Map();
  let most = 0;
  for (const [id, box] of boxes) {
    const [x, y] = shift(rowOf(box));
    moved.set(id, { ...box, x: box.x + x, y: box.y + y });
    most = Math.max(most, box.x + x + box.width + margin);
  }
  const lineOf = (source, target, line) => {
    const [from, to] = [rowOf(boxes.get(source)), rowOf(boxes.get(target))];
    const [[dx, dy], [ex, ey]] = [shift(from), shift(to)];
    if (from === to) return line.map(([x, y]) => [x + dx, y + dy]);
    const [start, end] = [line[0], line.at(-1)];
    const between = dy + height + ROW_GAP / 2;
    return [[start[0] + dx, start[1] + dy], [start[0] + dx + TURN, between], [end[0] + ex - TURN, between], [end[0] + ex, end[1] + ey]];
  };
  return { boxes: moved, lineOf, width: most, height: (Math.max(...starts.keys()) + 1) * (height + ROW_GAP) - ROW_GAP };
}
