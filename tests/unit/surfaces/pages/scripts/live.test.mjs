import assert from "node:assert/strict";
import { test } from "node:test";
import { applyEvents, collectReplies, makeView } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/live.js";

const step = (id, more = {}) => ({
  id, name: id, state: "waiting", attempt: 0, failures: 0, crashes: 0, worker: null, ready_at: null, started_at: null, ended_at: null,
  error: null, map: null, ...more,
});
const edge = (source, target, label = "done") => ({ source, target, label, wakes: true, taken: null });
const view = () => makeView({
  run: { status: "running", closed_at: null }, offset: 10, more: false, maps: [],
  steps: [step("a", { state: "running", attempt: 1 }), step("b"), step("c")], edges: [edge("a", "b"), edge("b", "c", "true")],
});
const event = (seq, type, more = {}) => ({ seq, type, at_ms: 5000, step: "a", attempt: 1, worker: null, ...more });

test("a step that ends takes its edge, and figures are asked for later", () => {
  const { view: after, stale } = applyEvents(view(), [event(11, "done")]);
  assert.deepEqual([after.steps.get("a").state, after.steps.get("a").ended_at], ["done", 5]);
  assert.equal(after.edges[0].taken, true);
  assert.equal(after.edges[1].taken, null);
  assert.equal(stale, "soon");
  assert.equal(after.offset, 11);
});

test("a wait that ran out of time is told as that, and so are the failures that a run went past", () => {
  const ends = [event(11, "done", { timed_out: true }), event(12, "closed", { step: null, status: "succeeded", failures: 2 })];
  const { view: after } = applyEvents(view(), ends);
  assert.equal(after.steps.get("a").state, "timed_out");
  assert.deepEqual([after.run.status, after.run.failures], ["succeeded", 2]);
});

test("what the view accounts for already changes nothing", () => {
  const before = view();
  const { view: after, stale } = applyEvents(before, [event(9, "failed"), event(10, "done")]);
  assert.equal(after.steps.get("a").state, "running");
  assert.equal(after.offset, 10);
  assert.equal(stale, "");
});

test("a decision, a growth and a step that is not known want the graph anew", () => {
  assert.equal(applyEvents(view(), [event(11, "done", { step: "b" })]).stale, "now");
  assert.equal(applyEvents(view(), [event(11, "expanded")]).stale, "now");
  assert.equal(applyEvents(view(), [event(11, "started", { step: "new" })]).stale, "now");
  assert.equal(applyEvents(view(), [event(11, "of-a-later-version")]).stale, "now");
});

test("attempts are counted as they come to nothing", () => {
  const retried = applyEvents(view(), [event(11, "retry", { error: { code: "x", message: "no" } }), event(12, "started", { attempt: 2, worker: "w" })]);
  const after = retried.view.steps.get("a");
  assert.deepEqual([after.state, after.attempt, after.failures, after.worker, after.error], ["running", 2, 1, "w", null]);
  assert.equal(applyEvents(view(), [event(11, "lost")]).view.steps.get("a").crashes, 1);
});

test("what is skipped takes no edge, and a run that closes says how", () => {
  assert.equal(applyEvents(view(), [event(11, "skipped")]).view.edges[0].taken, false);
  const closed = applyEvents(view(), [event(11, "closed", { step: null, status: "failed" })]).view;
  assert.deepEqual([closed.run.status, closed.run.closed_at], ["failed", 5]);
});

test("the view that was given is left as it was", () => {
  const before = view();
  applyEvents(before, [event(11, "done"), event(12, "closed", { status: "succeeded" })]);
  assert.equal(before.steps.get("a").state, "running");
  assert.equal(before.run.status, "running");
});

const delta = (text, attempt = 1, name = "a") => ({ type: "delta", step: name, attempt, text });

test("deltas are joined by attempt, and void when it is discarded", () => {
  const replies = collectReplies(new Map(), [delta("Hel"), delta("other", 1, "b"), delta("lo"), { type: "retry", step: "a", attempt: 1 }, delta("Well", 2)]);
  assert.deepEqual(replies.get("a"), [{ attempt: 1, text: "Hello", void: true }, { attempt: 2, text: "Well", void: false }]);
  assert.deepEqual(replies.get("b"), [{ attempt: 1, text: "other", void: false }]);
});

test("a fallback, which names no attempt, voids the earlier text, and later text counts", () => {
  const replies = collectReplies(new Map(), [delta("first"), { type: "fallback", step: "a", attempt: null }, delta("second")]);
  assert.deepEqual(replies.get("a").map(({ text, void: isVoid }) => [text, isVoid]), [["first", true], ["second", false]]);
});
