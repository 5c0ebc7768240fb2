import assert from "node:assert/strict";
import { test } from "node:test";
import { forEach } from "../../../../../orchestrator/cantata/surfaces/pages/static/bulk.js";

test("each is done once, a few at a time, and a failure stops no other", async () => {
  const seen = [];
  let most = 0;
  let open = 0;
  const { done, failed } = await forEach([1, 2, 3, 4, 5, 6, 7], async (item) => {
    seen.push(item);
    open += 1;
    most = Math.max(most, open);
    await new Promise((resolve) => setTimeout(resolve, 1));
    open -= 1;
    if (item % 3 === 0) throw new Error(`no ${item}`);
  });
  assert.deepEqual([seen, most], [[1, 2, 3, 4, 5, 6, 7], 4]);
  assert.deepEqual(done, [1, 2, 4, 5, 7]);
  assert.deepEqual(failed.map(([item, error]) => [item, error.message]), [[3, "no 3"], [6, "no 6"]]);
});
