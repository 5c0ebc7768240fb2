import assert from "node:assert/strict";
import { test } from "node:test";
import { answerOf, fieldOf, questionOf } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/answer_fields.js";

const ORDER = {
  type: "object",
  required: ["approved", "address", "tags"],
  properties: {
    approved: { type: "boolean", title: "Approve?" },
    amount: { anyOf: [{ type: "integer" }, { type: "null" }], description: "in cents" },
    size: { $ref: "#/$defs/Size" },
    address: { type: "object", required: ["city"], properties: { city: { type: "string" }, geo: { type: "object", properties: { x: { type: "number" } } } } },
    tags: { type: "array", items: { type: "string" } },
    rest: { type: "array", items: { type: "integer" } },
  },
  $defs: { Size: { enum: ["S", "L", 3] } },
};

test("each part of a schema has a field that fits it, and what no field fits is JSON", () => {
  const kinds = (field) => Object.fromEntries(field.fields.map((each) => [each.key, each.kind]));
  const order = fieldOf(ORDER);

  assert.deepEqual(kinds(order), { approved: "boolean", amount: "integer", size: "choice", address: "group", tags: "lines", rest: "json" });
  assert.deepEqual(kinds(order.fields[3]), { "address.city": "text", "address.geo": "json" });
  assert.deepEqual(order.fields[2].options, ["S", "L", 3]);
  assert.deepEqual([order.fields[0].label, order.fields[0].isRequired, order.fields[1].help, order.fields[1].isRequired], ["Approve?", true, "in cents", false]);
  assert.equal(fieldOf({ type: "string" }).kind, "text");
  assert.equal(fieldOf({ $ref: "#" }).kind, "json");
});

test("an answer has what was typed, and leaves out what was left empty", () => {
  const typed = { approved: "true", size: '"L"', "address.city": "Bonn", "address.geo": '{"x": 1}', tags: "a\n\n b ", rest: "[1]" };

  assert.deepEqual(answerOf(fieldOf(ORDER), typed), { approved: true, size: "L", address: { city: "Bonn", geo: { x: 1 } }, tags: ["a", "b"], rest: [1] });
  assert.deepEqual(answerOf(fieldOf({ type: "object", properties: { note: { type: "string" } } }), {}), {});
  assert.equal(answerOf(fieldOf({ type: "string" }), { "": "7" }), "7");
  assert.equal(answerOf(fieldOf({ type: "number" }), { "": "7" }), 7);
});

test("a schema that refers to itself ends", () => {
  assert.equal(fieldOf({ $ref: "#/$defs/A", $defs: { A: { $ref: "#/$defs/A" } } }).kind, "json");
});

test("a context has its question as `question` or `prompt`", () => {
  assert.deepEqual([questionOf({ question: "A?" }), questionOf({ prompt: "B?" }), questionOf("C?"), questionOf({ a: 1 }), questionOf(null)], ["A?", "B?", "C?", "", ""]);
});
