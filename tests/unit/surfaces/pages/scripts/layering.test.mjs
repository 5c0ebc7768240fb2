import assert from "node:assert/strict";
import { test } from "node:test";
import { overlap } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/geometry.js";
import { layOut } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/layering.js";

const room = { isDown: false, along: 40, aside: 10, margin: 20 };
const node = (id) => [id, [100, 50]];
const row = (count) => [Array.from({ length: count }, (_, n) => node(`n${n}`)), Array.from({ length: count - 1 }, (_, n) => [`n${n}`, `n${n + 1}`])];

test("a row of any length is straight", () => {
  const { boxes, width, height } = layOut(...row(10_000), room);
  assert.deepEqual(boxes.get("n0"), { x: 20, y: 20, width: 100, height: 50 });
  assert.deepEqual(boxes.get("n9999"), { x: 20 + 9999 * 140, y: 20, width: 100, height: 50 });
  assert.deepEqual([width, height], [20 + 10_000 * 140 - 40 + 20, 90]);
});

test("a row that goes down is as straight", () => {
  const { boxes, width, height } = layOut(...row(3), { ...room, isDown: true });
  assert.deepEqual(boxes.get("n2"), { x: 20, y: 20 + 2 * 90, width: 100, height: 50 });
  assert.deepEqual([width, height], [140, 270]);
});

test("nothing lies on another, and everything behind what leads to it", () => {
  const nodes = Array.from({ length: 400 }, (_, n) => node(`n${n}`));
  const edges = nodes.flatMap((_, n) => (n ? [[`n${Math.max(0, n - 1 - ((n * 7919) % 37))}`, `n${n}`]] : []));
  const { boxes } = layOut(nodes, edges, room);
  const all = [...boxes.values()];
  for (const [n, box] of all.entries()) for (const other of all.slice(n + 1)) assert.equal(overlap(box, other), false);
  for (const [source, target] of edges) assert.ok(boxes.get(source).x + 100 < boxes.get(target).x);
});

test("both sides of a fork lie around it", () => {
  const { boxes } = layOut([node("a"), node("b"), node("c"), node("d")], [["a", "b"], ["a", "c"], ["b", "d"], ["c", "d"]], room);
  assert.equal(boxes.get("a").y, boxes.get("d").y);
  assert.equal(boxes.get("c").y - boxes.get("b").y, 60);
});
