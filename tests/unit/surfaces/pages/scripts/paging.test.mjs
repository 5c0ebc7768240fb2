import assert from "node:assert/strict";
import { test } from "node:test";
import { visibleRows, hasGap, merge, countNewer } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/paging.js";

const run = (created_at, status = "running") => ({ run_id: `r${created_at}`, created_at, status });
const ids = (runs) => runs.map((each) => each.run_id);

test("a page that is read again replaces what it covers, and keeps what it does not", () => {
  const known = [9, 8, 7, 6, 5, 4].map((at) => run(at));
  const again = merge(known, { runs: [run(10), run(9, "failed"), run(7)], next: "7" }, { isFirst: true });
  assert.deepEqual(ids(again), ["r10", "r9", "r7", "r6", "r5", "r4"]);
  assert.equal(again[1].status, "failed");
});

test("the last page says that nothing follows", () => {
  assert.deepEqual(ids(merge([run(9), run(5), run(4)], { runs: [run(6)], next: null }, { isFirst: false })), ["r9", "r6"]);
});

test("an empty page in the midst of a long search loses nothing", () => {
  const known = [run(9), run(8)];
  assert.deepEqual(merge(known, { runs: [], next: "3" }, { isFirst: false }), known);
});

test("runs of the same moment stand as the API orders them", () => {
  const [a, b, c] = ["a", "b", "c"].map((run_id) => ({ run_id, created_at: 5 }));
  assert.deepEqual(ids(merge([c, b], { runs: [b, a], next: null }, { isFirst: false })), ["c", "b", "a"]);
});

test("a gap before what is known is noticed, and new runs are counted", () => {
  const page = { runs: [run(12), run(11), run(10)], next: "10" };
  assert.equal(hasGap([run(9)], page), true);
  assert.equal(hasGap([run(10), run(9)], page), false);
  assert.equal(countNewer([run(10), run(9)], page), 2);
});

test("only the rows around the visible part are rendered", () => {
  assert.deepEqual(visibleRows({ count: 1000, rowHeight: 10, top: 5000, height: 100, margin: 5 }), { from: 495, to: 515, before: 4950, after: 4850 });
  assert.deepEqual(visibleRows({ count: 3, rowHeight: 10, top: 5000, height: 100 }), { from: 3, to: 3, before: 30, after: 0 });
});
