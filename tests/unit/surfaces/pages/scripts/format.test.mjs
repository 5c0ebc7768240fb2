import assert from "node:assert/strict";
import { test } from "node:test";
import { age, clip, cost, count, duration, plain, plural, tokens, value } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/format.js";

test("a length of time has two units at most", () => {
  const found = [0, 0.4204, 0.9999, 3.24, 9.96, 42, 59.6, 60, 192, 3600, 7500, 97200, 864000].map(duration);
  assert.deepEqual(found, ["0 ms", "420 ms", "1.0 s", "3.2 s", "10 s", "42 s", "1 m", "1 m", "3 m 12 s", "1 h", "2 h 5 m", "1 d 3 h", "10 d"]);
  assert.equal(duration(null), "–");
});

test("how long ago is found in the unit that matters", () => {
  assert.deepEqual([-1, 1, 12, 300, 7300, 200000].map(age), ["now", "now", "12 s ago", "5 min ago", "2 h ago", "2 d ago"]);
});

test("counts and costs are short, and unknown is not nothing", () => {
  assert.deepEqual([0, 950, 9500, 12345, 999949, 4_500_000].map(count), ["0", "950", "9,500", "12.3k", "999.9k", "4.5M"]);
  assert.deepEqual([null, 0, 1e-9, 5e-7, 0.00002, 0.0031, 0.0999, 1.25].map(cost), ["–", "$0", "$0", "$0", "$0.00002", "$0.0031", "$0.1", "$1.25"]);
  assert.equal(tokens({ input_tokens: 0, output_tokens: 0, model_calls: 0 }), "–");
  assert.equal(tokens({ input_tokens: 10, output_tokens: 2, model_calls: 1 }), "12");
  assert.equal(plural(1, "step"), "1 step");
});

test("what turns the direction of a text, or hides, is written as its code", () => {
  assert.equal(plain("abc\u202egnp.exe\u0007"), "abc\\u202egnp.exe\\u0007");
  assert.equal(plain("שלום\u200f\n\tgood"), "שלום\u200f\n\tgood");
});

test("a clipped text is one line, and a value is readable", () => {
  assert.equal(clip("  one\n two ", 20), "one two");
  assert.equal(clip("x".repeat(1_000_000), 5), "xxxx…");
  assert.equal(value({ a: [1] }), '{\n  "a": [\n    1\n  ]\n}');
  assert.equal(value("text"), "text");
  assert.equal(value(undefined), "");
});
