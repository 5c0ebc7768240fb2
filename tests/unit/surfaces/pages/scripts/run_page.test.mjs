import assert from "node:assert/strict";
import { test } from "node:test";
import { durationsOf } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/event_list.js";
import { nameOf, withoutInternal } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/internal_steps.js";
import { changesOf, commandOf, inputOf, takesInput } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/requests.js";
import { locationIn, runAddress } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/route.js";
import { wrapped } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/wrapping.js";

const step = (id, internal = false) => [id, { id, name: id, internal }];
const edge = (source, target, more = {}) => ({ source, target, label: "done", wakes: true, taken: true, ...more });

test("internal steps are left out, and edges lead past them", () => {
  const steps = new Map([step("@start", true), step("a"), step("m"), step("m/@gather", true), step("w/@1/@advance", true), step("z")]);
  const edges = [
    edge("@start", "a", { label: "expanded" }), edge("a", "m", { label: "true" }), edge("m", "m/@gather"), edge("m/@gather", "w/@1/@advance", { taken: null }),
    edge("w/@1/@advance", "z", { taken: null }),
  ];
  const { view, hidden } = withoutInternal({ steps, edges });
  assert.deepEqual([[...view.steps.keys()], hidden], [["a", "m", "z"], 3]);
  assert.deepEqual(view.edges, [edge("a", "m", { label: "true" }), edge("m", "z", { taken: null })]);
});

test("a view of internal steps only stays, and so does one that joins many", () => {
  const alone = { steps: new Map([step("@start", true)]), edges: [] };
  assert.deepEqual(withoutInternal(alone), { view: alone, hidden: 0 });
  const many = Array.from({ length: 30 }, (_, n) => n);
  const steps = new Map([...many.map((n) => step(`a${n}`)), step("x/@gather", true), ...many.map((n) => step(`b${n}`))]);
  const edges = [...many.map((n) => edge(`a${n}`, "x/@gather")), ...many.map((n) => edge("x/@gather", `b${n}`))];
  assert.equal(withoutInternal({ steps, edges }).view.edges.length, 60);
});

test("a step that the page does not have is named by its id", () => {
  const view = { steps: new Map([["a/t0", { name: "search" }]]) };
  assert.deepEqual(["a/t0", "each/7", "each/7/sub"].map((id) => nameOf(view, id)), ["search", "each [7]", "each [7]/sub"]);
});

test("an event that ends an attempt has its duration", () => {
  const event = (seq, type, at_ms) => ({ seq, type, step: "a", at_ms });
  const found = durationsOf([event(1, "started", 0), event(2, "retry", 500), event(3, "done", 900), event(4, "started", 1000), event(5, "waiting", 1100), event(6, "done", 4000)]);
  assert.deepEqual([...found], [[2, 0.5], [6, 3]]);
});

const turn = { kind: "turn", cut: false, labels: { team: "a b", forked_from: "x" }, request: { text: "it's", agent: "clerk", session: "s", send_history: true, timeout_s: 60 } };
const chain = { kind: "chain", cut: false, labels: {}, request: { nodes: [{ node_id: "a", kind: "tool" }], entry_node: "a", initial_input: { n: 1 } } };
const workflow = { kind: "chain", cut: false, labels: {}, request: { nodes: [{ node_id: "w", kind: "workflow", name: "report", input: { n: 1 } }], entry_node: "w" } };

test("a request is a command that a shell reads as it was", () => {
  assert.equal(commandOf(turn), "submit turn --agent clerk --session s --timeout 60 --history --label 'team=a b' -- 'it'\\''s'");
  assert.equal(commandOf(workflow), "submit workflow report --input '{\"n\":1}'");
  assert.equal(commandOf(chain), `submit chain - <<'END'\n${JSON.stringify(chain.request, null, 2)}\nEND`);
  assert.equal(commandOf({ ...chain, cut: true }), "");
});

test("a command that cannot be pasted safely, or submits something else, is not offered", () => {
  const said = (text) => commandOf({ ...turn, request: { ...turn.request, text } });
  assert.deepEqual([said("hi\x03\nrm -rf ~\n"), said("-"), said("a\x1b[2J")], ["", "", ""]);
  assert.equal(said("two\nlines").endsWith("'two\nlines'"), true);
  assert.deepEqual([commandOf({ ...turn, kind: "batch" }), inputOf({ ...turn, kind: "batch" })], ["", null]);
  assert.equal(commandOf({ ...turn, labels: { requested_by: "anna", schedule: "s" } }).includes("anna"), false);
  const posting = { ...workflow, request: { ...workflow.request, timeout: 60, webhooks: ["ops"] } };
  assert.equal(commandOf(posting), "submit workflow report --input '{\"n\":1}' --timeout 60 --webhook ops");
});

test("the input of a run is what a fork may change", () => {
  assert.deepEqual([inputOf(turn), JSON.parse(inputOf(chain)), JSON.parse(inputOf(workflow))], ["it's", { n: 1 }, { n: 1 }]);
  assert.deepEqual([changesOf(turn, "it's"), changesOf(turn, "so"), changesOf(chain, '{"n": 2}')], [{}, { input: "so" }, { input: { n: 2 } }]);
  assert.throws(() => changesOf(chain, "{"), /not valid JSON/);
  assert.deepEqual([takesInput(workflow, "@start"), takesInput(workflow, "w"), takesInput(chain, "a"), takesInput({ ...chain, kind: "webhook" }, "a")], [true, false, true, false]);
});

test("a comparison has an address", () => {
  const { search } = new URL(runAddress("/p", "r", { tab: "compare", other: "x/1" }), "http://h");
  assert.deepEqual(locationIn(search), { tab: "compare", step: null, other: "x/1" });
});

test("a graph that is too long for one row is wrapped, its edges around the rows", () => {
  const boxes = new Map(Array.from({ length: 12 }, (_, n) => [`s${n}`, { x: 24 + n * 236, y: 24, width: 190, height: 50 }]));
  const found = wrapped({ boxes, width: 12 * 236, height: 98 }, { width: 1200, height: 400 });
  assert.ok(found.width <= 1400 && found.height > 98);
  const [first, last] = [found.boxes.get("s0"), found.boxes.get("s11")];
  assert.ok(last.y > first.y && first.x === 24);
  assert.deepEqual(found.lineOf("s0", "s1", [[214, 49], [260, 49]]), [[214, 49], [260, 49]]);
  const line = found.lineOf("s0", "s11", [[214, 49], [2620, 49]]);
  assert.deepEqual([line.length, line.at(-1)[0]], [4, last.x]);
  for (const [count, width] of [[4, 1200], [3, 720]]) { // it fits, or nearly
    assert.equal(wrapped({ boxes: new Map([...boxes].slice(0, count)), width: count * 236, height: 98 }, { width, height: 364 }), null);
  }
});
