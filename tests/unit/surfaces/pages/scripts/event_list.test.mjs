import assert from "node:assert/strict";
import { test } from "node:test";
import { append, empty, prepend, refusalIn, summary } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/event_list.js";

const event = (seq, type, more = {}) => ({ seq, type, at_ms: seq, step: "a", attempt: 1, worker: null, ...more });
const delta = (seq, text, more = {}) => event(seq, "delta", { text, ...more });

test("pieces of a reply are one entry, whatever comes between", () => {
  const list = append(append(empty, [delta(1, "one "), event(2, "done", { step: "b" })]), [delta(3, "two"), delta(4, "b", { step: "b" })]);
  assert.deepEqual(list.entries.map((entry) => entry.text ?? entry.type), ["one two", "done", "b"]);
  assert.deepEqual([list.first, list.last], [1, 4]);
});

test("no event is listed twice", () => {
  const list = append(empty, [event(1, "started"), event(2, "done")]);
  assert.equal(append(list, [event(1, "started"), event(2, "done")]), list);
});

test("a reply is void when its attempt came to nothing, and the next one is an entry of its own", () => {
  const list = append(empty, [delta(1, "gone"), event(2, "lost"), delta(3, "good", { attempt: 2 })]);
  assert.deepEqual(list.entries.map(({ type, text, void: isVoid }) => [type, text, isVoid]), [["delta", "gone", true], ["lost", undefined, undefined], ["delta", "good", false]]);
});

test("earlier events are put before", () => {
  const list = prepend(append(empty, [event(5, "done")]), [event(3, "started"), event(4, "retry"), event(5, "done")]);
  assert.deepEqual(list.entries.map((entry) => entry.seq), [3, 4, 5]);
  assert.deepEqual([list.first, list.last], [3, 5]);
});

test("a refusal is told until its step starts, or the run is over", () => {
  const refused = event(2, "refused", { message: "other code" });
  assert.equal(refusalIn([event(1, "started"), refused, event(3, "done", { step: "b" })]), "other code");
  assert.equal(refusalIn([refused, event(3, "started")]), "");
  assert.equal(refusalIn([refused, event(3, "closed", { step: null })]), "");
});

test("an event has a summary of one line", () => {
  assert.equal(summary(event(1, "failed", { error: { code: "timeout", message: "too slow" } })), "timeout: too slow");
  assert.equal(summary(event(1, "expanded", { steps: 3 })), "3 more");
  assert.equal(summary(event(1, "waiting", { asks: { please: 1 } })), '{"please":1}');
  assert.equal(summary(event(1, "done")), "");
  assert.equal(summary(event(1, "closed", { status: "cancelled", by: "billing", verified: true })), "cancelled by billing");
  assert.equal(summary(event(1, "signal", { by: "ann@ops", verified: false })), "by ann@ops (claimed)");
  assert.equal(summary(event(1, "signal", { by: "ann" })), "by ann");
});
