import assert from "node:assert/strict";
import { test } from "node:test";
import { empty, preceded, summary, told } from "../../../../orchestrator/pages/static/core/story.js";

const event = (seq, type, more = {}) => ({ seq, type, at_ms: seq, step: "a", attempt: 1, worker: null, detail: {}, ...more });
const delta = (seq, text, more = {}) => event(seq, "delta", { detail: { text }, ...more });

test("pieces of a reply are one entry, whatever comes between", () => {
  const story = told(told(empty, [delta(1, "one "), event(2, "done", { step: "b" })]), [delta(3, "two"), delta(4, "b", { step: "b" })]);
  assert.deepEqual(story.entries.map((entry) => entry.text ?? entry.type), ["one two", "done", "b"]);
  assert.deepEqual([story.first, story.last], [1, 4]);
});

test("nothing is told twice", () => {
  const story = told(empty, [event(1, "started"), event(2, "done")]);
  assert.equal(told(story, [event(1, "started"), event(2, "done")]), story);
});

test("a reply is void when its attempt came to nothing, and the next one is an entry of its own", () => {
  const story = told(empty, [delta(1, "gone"), event(2, "lost"), delta(3, "good", { attempt: 2 })]);
  assert.deepEqual(story.entries.map(({ type, text, void: isVoid }) => [type, text, isVoid]), [["delta", "gone", true], ["lost", undefined, undefined], ["delta", "good", false]]);
});

test("earlier events are put before", () => {
  const story = preceded(told(empty, [event(5, "done")]), [event(3, "started"), event(4, "retry"), event(5, "done")]);
  assert.deepEqual(story.entries.map((entry) => entry.seq), [3, 4, 5]);
  assert.deepEqual([story.first, story.last], [3, 5]);
});

test("an event is told in a line", () => {
  assert.equal(summary(event(1, "failed", { detail: { error: { code: "timeout", message: "too slow" } } })), "timeout: too slow");
  assert.equal(summary(event(1, "grown", { detail: { steps: 3 } })), "3 more");
  assert.equal(summary(event(1, "waiting", { detail: { asks: { please: 1 } } })), '{"asks":{"please":1}}');
  assert.equal(summary(event(1, "done")), "");
});
