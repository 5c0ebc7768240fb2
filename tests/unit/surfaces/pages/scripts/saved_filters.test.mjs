import assert from "node:assert/strict";
import { test } from "node:test";

import { MAX_SAVED, queryOf, renamed, savedIn, withSaved, withoutSaved } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/saved_filters.js";

test("filters are saved, renamed and deleted by their names", () => {
  const one = withSaved([], " Failed today ", "status=failed&since=24h");
  assert.deepEqual(one, [{ name: "Failed today", query: "status=failed&since=24h" }]);
  assert.deepEqual(renamed(one, "Failed today", "Failed")[0], { name: "Failed", query: "status=failed&since=24h" });
  assert.equal(renamed(one, "Failed today", "Failed today "), one);
  assert.deepEqual(withoutSaved(one, "Failed today"), []);
  assert.throws(() => withSaved(one, "Failed today", "q=a"), /There is a saved filter Failed today already/);
  assert.throws(() => withSaved(one, "  ", "q=a"), /Give the filter a name/);
  assert.throws(() => withSaved(one, "x".repeat(61), "q=a"), /at most 60/);
});

test("there are not more than so many, however many are stored", () => {
  const many = Array.from({ length: 1000 }, (_, n) => ({ name: `n${n}`, query: "q=a" }));
  assert.equal(savedIn(JSON.stringify(many)).length, MAX_SAVED);
  assert.throws(() => withSaved(savedIn(JSON.stringify(many)), "more", "q=a"), /30 filters are saved; delete one first/);
});

test("what is stored is read as filters or not at all", () => {
  for (const text of [null, "", "no JSON", "{}", "null", '[1, null, {"name": 1}, {"name": " ", "query": ""}, {"name": "a"}]']) assert.deepEqual(savedIn(text), []);
  const twice = [{ name: "a", query: "status=failed&evil=javascript:x" }, { name: "a", query: "" }];
  assert.deepEqual(savedIn(JSON.stringify(twice)), [{ name: "a", query: "status=failed" }]);
  assert.equal(queryOf("?until=2026-01-01T00:00&q=x&status=failed&status=running&tenant=b"), "status=failed&status=running&q=x&until=2026-01-01T00%3A00");
});
