import assert from "node:assert/strict";
import { test } from "node:test";
import { MIN_CROWD, fold, shapeOf, stateOf } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/folding.js";

const step = (id, more = {}) => ({ id, name: id, state: "done", map: null, ...more });
const edge = (source, target, label = "done", taken = true) => ({ source, target, label, taken, wakes: true });
const view = (steps, edges, maps = []) => ({ steps: new Map(steps.map((each) => [each.id, each])), edges, maps });

const many = Array.from({ length: MIN_CROWD }, (_, n) => step(`w-${n}`, { state: n ? "done" : "failed" }));
const crowd = view([step("a"), ...many, step("z")], many.flatMap(({ id }) => [edge("a", id), edge(id, "z", "done", id !== "w-0")]));

test("many steps between the same neighbours are one node with a count", () => {
  const { nodes, edges } = fold(crowd, new Set());
  assert.deepEqual(nodes.map((node) => node.id), ["a", "+w-0", "z"]);
  assert.deepEqual([nodes[1].group.count, nodes[1].group.counts.done, nodes[1].group.counts.failed, nodes[1].group.members.length], [MIN_CROWD, MIN_CROWD - 1, 1, 0]);
  assert.equal(nodes[1].group.name, "w-…");
  assert.deepEqual(edges.map(({ source, target, taken }) => [source, target, taken]), [["a", "+w-0", true], ["+w-0", "z", true]]);
});

test("steps of a group are counted as items of a map are", () => {
  const states = ["waiting", "ready", "waiting_signal", "running", "timed_out", "skipped"];
  const steps = many.map(({ id }, n) => step(id, { state: states[n] ?? "sent", attempt: n === 6 ? 1 : 0 }));
  const { nodes } = fold(view([step("a"), ...steps], steps.map(({ id }) => edge("a", id))), new Set());
  assert.deepEqual(nodes[1].group.counts, { waiting: 2 + MIN_CROWD - 7, running: 3, done: 1, failed: 0, skipped: 1 });
});

test("one fewer are shown as they are", () => {
  const fewer = many.slice(1);
  const { nodes } = fold(view([step("a"), ...fewer], fewer.map(({ id }) => edge("a", id))), new Set());
  assert.equal(nodes.length, MIN_CROWD);
});

test("an open group has its members, and is laid out anew", () => {
  const [closed, open] = [fold(crowd, new Set()), fold(crowd, new Set(["+w-0"]))];
  assert.equal(open.nodes[1].group.members.length, MIN_CROWD);
  assert.notEqual(shapeOf(closed), shapeOf(open));
});

test("a map is counted by the server, and omitted items are counted too", () => {
  const counts = { waiting: 1, running: 2, done: 297, failed: 0, skipped: 0 };
  const map = { id: "m", name: "m", prefix: "m", count: 300, ...counts };
  const items = [step("m/0", { map: "m" }), step("m/0/t0", { map: "m" })];
  const edges = [edge("a", "m"), edge("m", "m/0"), edge("m/0", "g"), edge("m/0", "m/0/t0")];
  const { nodes, edges: drawn } = fold(view([step("a"), step("m"), ...items, step("g")], edges, [map]), new Set(["m"]));
  assert.deepEqual(nodes.map((node) => node.id), ["a", "m", "g"]);
  assert.deepEqual([nodes[1].group.members.length, nodes[1].group.hidden], [2, 298]);
  assert.deepEqual(drawn.map(({ source, target }) => [source, target]), [["a", "m"], ["m", "g"]]);
  assert.equal(stateOf(nodes[1].group).label, "Running");
});
