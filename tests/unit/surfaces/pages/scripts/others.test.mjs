import assert from "node:assert/strict";
import { test } from "node:test";
import { neighbour, overlap, pathOf } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/geometry.js";
import { apiQuery, batchAddress, filterOf, filterQuery, listAddress, pageOf, locationIn, runAddress, scheduleAddress } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/route.js";
import { makeParser } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/sse.js";
import { batchIsOver, ofBatch, ofRun, ofStep, runIsOver, share } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/states.js";
import { spentBy, ticks, timesOf } from "../../../../../orchestrator/cantata/surfaces/pages/static/core/times.js";

test("messages are read whole, wherever the stream was cut", () => {
  const text = 'retry: 1000\n\n: still here\n\nid: 7\r\nevent: done\r\ndata: {"a":1}\r\n\r\nid: 8\ndata: one\ndata: two\n\n';
  for (let size = 1; size < text.length; size += 1) {
    const setField = makeParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...setField(text.slice(at, at + size)));
    assert.deepEqual(found, [{ id: "7", event: "done", data: '{"a":1}' }, { id: "8", data: "one\ntwo" }], `pieces of ${size}`);
  }
});

test("addresses lead to what they were made of", () => {
  const id = "a/b c?#ü";
  const address = new URL(runAddress("/p", id, { tab: "time", step: "x/0 &=" }), "http://h");
  assert.deepEqual(pageOf("/p", address.pathname), { page: "run", runId: id });
  assert.deepEqual(locationIn(address.search), { tab: "time", step: "x/0 &=", other: null });
  assert.equal(runAddress("", "r"), "/run/r");
  assert.deepEqual([pageOf("/p", "/p/"), pageOf("/p", "/p"), pageOf("/p", "/p/other")].map(({ page }) => page), ["list", "list", "none"]);
  assert.equal(pageOf("", "/run/%E0%A4%A").runId, "%E0%A4%A");
  assert.deepEqual(pageOf("/p", "/p/schedules"), { page: "schedules" });
  const schedule = new URL(scheduleAddress("/p", "a.b", "x/y&z"), "http://x");
  assert.deepEqual(pageOf("/p", schedule.pathname), { page: "schedule", name: "a.b" });
  assert.equal(schedule.searchParams.get("tenant"), "x/y&z");
  assert.equal(locationIn("?tab=odd").tab, "graph");
  assert.deepEqual(pageOf("/p", "/p/home"), { page: "home" });
  const filter = { statuses: ["failed", "running"], kind: "turn", text: "a&b", since: "24h", until: "2026-11-26T10:00" };
  assert.deepEqual(filterOf(new URL(listAddress("/p", filter), "http://h").search), filter);
  assert.equal(filterQuery({ statuses: [], kind: "", text: "" }).toString(), "");
  assert.equal(apiQuery({ ...filter, until: "2026-11-26T10:00Z" }, 1_000_000).toString(), "status=failed&status=running&kind=turn&q=a%26b&since=913600&until=1795687200");
  assert.equal(apiQuery({ since: "odd", until: "" }, 5).toString(), "");
});

test("batches have addresses, states and shares", () => {
  const address = new URL(batchAddress("/p", "rows 1"), "http://h");
  assert.deepEqual(pageOf("/p", address.pathname), { page: "batch", name: "rows 1" });
  assert.deepEqual(pageOf("/p", "/p/batches"), { page: "batches" });
  assert.deepEqual([ofBatch({ state: "budget_spent" }).label, ofBatch({ state: "odd" }).label], ["Budget spent", "odd"]);
  const done = (failed) => ofBatch({ state: "done", failed, delivered: 3 });
  assert.deepEqual([0, 1, 3].map((failed) => [done(failed).label, done(failed).tone]), [["Done", "good"], ["Done with failures", "wait"], ["Failed", "bad"]]);
  assert.deepEqual([batchIsOver("done"), batchIsOver("cancelled"), batchIsOver("paused")], [true, true, false]);
  assert.deepEqual([share({ total: null, delivered: 3 }), share({ total: 4, delivered: 1 }), share({ total: 0, delivered: 0 })], [0, 0.25, 1]);
});

test("a state of a newer version is shown as its label", () => {
  assert.deepEqual([ofRun("succeeded", 1).label, ofRun("succeeded", 0).label], ["Succeeded with failures", "Succeeded"]);
  assert.deepEqual(["waiting", "waiting_signal", "timed_out"].map((state) => ofStep({ state }).label), ["Pending", "Waits for an answer", "Timed out"]);
  assert.deepEqual([ofRun("paused").label, ofStep({ state: "napping" }).label], ["paused", "napping"]);
  assert.deepEqual([runIsOver("exhausted"), runIsOver("accepted")], [true, false]);
});

test("an arrow key leads to the nearest box in its direction", () => {
  const box = (x, y) => ({ x, y, width: 10, height: 10 });
  const boxes = new Map([["a", box(0, 0)], ["b", box(50, 5)], ["c", box(50, 100)], ["d", box(200, 0)]]);
  assert.equal(neighbour(boxes, "a", "ArrowRight"), "b");
  assert.equal(neighbour(boxes, "b", "ArrowDown"), "c");
  assert.equal(neighbour(boxes, "a", "ArrowLeft"), null);
  assert.equal(neighbour(boxes, "a", "Enter"), null);
  assert.equal(overlap(box(0, 0), box(9, 9)), true);
  assert.equal(overlap(box(0, 0), box(10, 0)), false);
  assert.equal(pathOf([[0, 0], [10, 20]], false), "M0 0C5 0 5 20 10 20");
});

test("a time line tells waiting from work", () => {
  const step = { id: "a", state: "done", ready_at: 101, first_at: 103, started_at: 103, ended_at: 106 };
  const never = { id: "b", state: "waiting", ready_at: null, started_at: null, ended_at: null };
  const running = { id: "c", state: "running", ready_at: 100, first_at: 101, started_at: 108, ended_at: null };
  const view = { run: { created_at: 100, closed_at: null }, steps: new Map([step, never, running].map((each) => [each.id, each])) };
  const { rows } = timesOf(view, 110);
  assert.deepEqual(rows.map((row) => row.step.id), ["c", "a"]);
  assert.deepEqual(rows[1].wait, [0.1, 0.2]);
  assert.deepEqual(rows[1].work, [0.3, 0.3]);
  assert.deepEqual([rows[1].spent.wait, rows[1].spent.work, rows[0].spent.work], [2, 3, 2]);
  assert.deepEqual([rows[1].before, rows[0].before, rows[0].spent.wait, rows[0].spent.before], [null, [0.1, 0.7], 1, 7]);
  const between = { id: "d", state: "ready", ready_at: 100, first_at: 102, started_at: 104, ended_at: null };
  const asking = { id: "e", state: "waiting_signal", ready_at: 100, first_at: 101, started_at: 101, ended_at: null };
  const others = timesOf({ ...view, steps: new Map([between, asking].map((each) => [each.id, each])) }, 110).rows;
  assert.deepEqual(others.map(({ spent }) => [spent.wait, spent.before, spent.work]), [[2, 8, null], [1, null, 9]]);
});

test("what a step waits for is named: an answer, a time, a limit, another attempt, or a queue", () => {
  const at = { ready_at: 100, first_at: null, started_at: null, ended_at: null, asked_at: null, awaits: null, failures: 0, crashes: 0, limited: false };
  const words = (step) => spentBy({ ...at, ...step }, 130).map((each) => each.join(" ").replace(/since [^(]+/, "since … "));
  const label = (step) => ofStep({ ...at, ...step }).label;
  const asking = { state: "waiting_signal", awaits: "answer", asked_at: 110 };
  assert.deepEqual([label(asking), words(asking)], ["Waits for an answer", ["Waits for an answer since … (20 s)"]]);
  assert.deepEqual(words({ state: "done", awaits: "answer", asked_at: 110, ended_at: 117 }), ["Waited for an answer for 7.0 s"]);
  const asleep = { state: "running", awaits: "time", asked_at: 100 };
  assert.deepEqual([label(asleep), words(asleep)], ["Sleeps", ["Sleeps since … (30 s)"]]);
  assert.deepEqual(words({ state: "done", awaits: "time", asked_at: 100, ended_at: 104 }), ["Slept for 4.0 s"]);
  const unsure = { state: "waiting_signal", awaits: "answer", first_at: 101, started_at: 101, asked_at: 103 };
  assert.deepEqual(words(unsure), ["Waited 1.0 s in a queue", "Worked 2.0 s", "Waits for an answer since … (27 s)"]);
  const limited = { state: "waiting", first_at: 101, started_at: 101, limited: true };
  assert.deepEqual([label(limited), words(limited)], ["Held back by a limit", ["Waited 1.0 s in a queue", "Held back 29 s by limits"]]);
  const again = { state: "waiting", first_at: 101, started_at: 101, failures: 1 };
  assert.deepEqual([label(again), words(again)], ["Waits to retry", ["Waited 1.0 s in a queue", "Retried 29 s in earlier attempts"]]);
  const sent = { state: "sent" };
  assert.deepEqual([label(sent), words(sent)], ["In queue", ["Waited 30 s in a queue"]]);
});

test("the labels of a time axis have room, whatever its span and width", () => {
  assert.deepEqual(ticks(10, 350).map(([label]) => label), ["0", "2.0 s", "4.0 s", "6.0 s", "8.0 s"]);
  assert.deepEqual(ticks(1000, 400), [["0", 0], ["5 m", 0.3], ["10 m", 0.6], ["15 m", 0.9]], "round on a clock");
  assert.deepEqual(ticks(5, 0), [["0", 0]]);
  for (const seconds of [0.05, 0.9, 3, 59, 61, 340, 3599, 40_000, 86_400, 1e6, 2.6e6]) {
    for (const width of [120, 170, 350, 900, 1500]) {
      const found = ticks(seconds, width);
      const ends = found.map(([label, part]) => part * width + 6 + 7 * label.length);
      found.slice(1).forEach(([, part], n) => assert.ok(part * width >= ends[n], `${seconds} s in ${width} px`));
      assert.ok(ends.at(-1) <= width, `${seconds} s in ${width} px: the last is not cut`);
      assert.ok((found.length >= 2 || width < 150) && found.length <= width / 25, `${seconds} s in ${width} px: ${found}`);
    }
  }
});
