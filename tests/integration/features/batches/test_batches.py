"""Records of batches: a row is counted once, whatever is repeated, and a delivered row's run leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from redis import Redis

from cantata.client.client import Client
from cantata.errors import ConfigError
from cantata.features.batches.batch_store import BatchInfo, BatchStore, Delivered
from cantata.features.batches.batches import batch_target
from cantata.features.batches.rows import BatchRow, Row
from cantata.flows.definitions import Alert, Chain, Definitions, Tool, Webhook
from cantata.flows.wire import ChainNode, RunState
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS, shard_key, shard_of
from cantata.ledger.runs import listing, outcomes
from cantata.values import JsonValue, Usage
from tests.integration.state.play import Play, work
from tests.integration.test_threads import url_of

IDENTITY: dict[str, JsonValue] = {
    "target": {"kind": "agent", "name": "ann"},
    "source": "",
    "columns": {},
    "out": "",
    "ordered": False,
}
SETTINGS = {"file": "", "concurrency": "10", "budget_usd": ""}
COST = Usage(input_tokens=3, output_tokens=2, cost_usd=0.25)


@pytest.fixture
def store(ledger: Ledger) -> BatchStore:
    return BatchStore(ledger, "acme & co")


def begin(store: BatchStore, name: str = "rows", **settings: str) -> BatchInfo:
    return store.open(name, IDENTITY, {**SETTINGS, **settings})[1]


def delivered(*rows: int, failed: Sequence[int] = ()) -> list[Delivered]:
    return [Delivered(row, row in failed, COST) for row in rows]


def keys_of(valkey: Redis) -> list[str]:
    return sorted(key for key in valkey.scan_iter(match="*batch:*"))


def test_a_row_is_counted_once_however_often_it_is_recorded(store: BatchStore) -> None:
    batch = begin(store)

    store.record(batch, submitted=3, delivered=delivered(0, 2, failed=[2]))
    found = store.record(batch, delivered=delivered(2, 0, failed=[0]))

    assert (found.delivered, found.failed, found.submitted, found.usage) == (2, 1, 3, COST + COST)
    assert [*store.undelivered("rows", 0, 3)] == [1]
    assert [*store.failed("rows", 0, 3)] == [2]


def test_a_batch_is_done_when_all_its_rows_are_delivered_and_only_then_expires(
    store: BatchStore, valkey: Redis
) -> None:
    batch = begin(store)
    assert store.record(batch, submitted=2, delivered=delivered(0, 1)).state == "running", (
        "how many there are is not known"
    )
    assert {valkey.pttl(key) for key in keys_of(valkey)} == {-1}

    assert store.record(batch, total=2).state == "done"

    assert len(keys_of(valkey)) == 4
    assert all(valkey.pttl(key) > 0 for key in keys_of(valkey))


def test_a_million_rows_take_two_bits_each(store: BatchStore, valkey: Redis) -> None:
    batch, free, last = begin(store), Usage(), 999_999
    store.record(batch, submitted=last + 1)

    for row in range(0, last + 1, 65_536):
        store.record(batch, delivered=[Delivered(min(row + 65_535, last), True, free)])

    kept = sum(valkey.memory_usage(key) or 0 for key in keys_of(valkey))
    assert kept < 500_000, f"{kept} bytes"
    assert [*store.failed("rows", 0, last + 1)][-1] == last
    undelivered = store.undelivered("rows", 65_530, last)
    assert [next(undelivered) for _ in range(7)] == [65_530, 65_531, 65_532, 65_533, 65_534, 65_536, 65_537]


def test_another_batch_of_the_same_name_changes_nothing(store: BatchStore) -> None:
    begin(store, budget_usd="1.5")

    is_new, found = store.open("rows", {**IDENTITY, "source": "another file"}, {**SETTINGS, "budget_usd": "99"})

    assert (is_new, found.source, found.budget_usd) == (False, "", 1.5)


def test_batches_of_other_tenants_are_not_found(store: BatchStore, ledger: Ledger) -> None:
    begin(store)
    begin(store, "second")

    assert [each.name for each in store.newest()] == ["second", "rows"]
    for tenant in ("", "acme", "acme & co/rows"):
        other = BatchStore(ledger, tenant)
        assert (other.newest(), other.find("rows")) == ([], None)
        assert other.change("rows", "cancel") == (False, None)


def test_states_change_as_their_words_say(store: BatchStore) -> None:
    begin(store)

    def change(what: str) -> tuple[bool, str]:
        was_changed, found = store.change("rows", what)  # type: ignore[arg-type]
        assert found
        return was_changed, found.state

    assert change("pause") == (True, "paused")
    assert change("pause") == (False, "paused")
    assert change("resume") == (True, "running")
    assert change("retry") == (False, "running")
    assert change("cancel") == (True, "cancelled")
    assert change("resume") == (False, "cancelled")


def test_a_spent_batch_goes_on_with_a_higher_budget_only(store: BatchStore) -> None:
    batch = begin(store, budget_usd="0.2")
    store.record(batch, submitted=1, delivered=delivered(0))
    assert store.change("rows", "spend")[0]

    assert begin(store, budget_usd="0.25").state == "budget_spent"
    assert begin(store, budget_usd="0.26").state == "running"


def test_a_retry_makes_the_failed_rows_undelivered_and_a_late_record_of_the_old_round_counts_nothing(
    store: BatchStore,
) -> None:
    batch = begin(store)
    batch = store.record(batch, submitted=5, total=5, delivered=delivered(0, 1, 2, 3, 4, failed=[1, 4]), out_bytes=500)

    was_changed, again = store.change("rows", "retry", out_bytes=300)

    assert was_changed
    assert again
    assert (again.state, again.round, again.delivered, again.failed, again.out_bytes, again.closed_at) == (
        "running",
        1,
        3,
        0,
        300,
        None,
    )
    assert [*store.undelivered("rows", 0, 5)] == [1, 4]
    assert store.record(batch, delivered=delivered(1, failed=[1])).delivered == 3
    assert store.record(again, delivered=delivered(1, 4)).state == "done"


def test_one_process_feeds_a_batch(store: BatchStore) -> None:
    begin(store)

    assert store.feed("rows", "one", 60_000)[0] == "one"
    assert store.feed("rows", "two", 60_000)[0] == "one"
    store.feed("rows", "two", 0)
    assert store.feed("rows", "two", 60_000)[0] == "one", "another cannot give up its right"
    store.feed("rows", "one", 0)
    assert store.feed("rows", "two", 60_000)[0] == "two"


# --- rows as runs -----------------------------------------------------------------------------------------------------------


def accept(ledger: Ledger, run_id: str, *, batch: str = "", tenant: str = "acme") -> int:
    settings: dict[str, Any] = {
        "kind": "turn",
        "timeout_s": 60,
        "max_attempts": 3,
        "max_steps": 9,
        "labels": {"tenant": tenant},
    }
    settings["definitions"] = "{}"
    if batch:
        return ledger.runs.accept_rows({run_id: "{}"}, batch=batch, queue="coordinator", retention_s=60, **settings)[
            0
        ].priority
    return ledger.runs.accept(run_id, request="{}", **settings).priority


def ids_in_one_shard() -> list[str]:
    ids = (f"run{number}" for number in count())
    return [next(each for each in ids if shard_of(each) == 7) for _ in range(40)]


def test_the_rows_of_a_batch_do_not_lower_the_priority_of_a_persons_turn(ledger: Ledger) -> None:
    first, *ids, turn, other, after = ids_in_one_shard()

    assert accept(ledger, first) == 0
    assert [accept(ledger, run_id, batch="acme/rows") for run_id in ids] == [3] + [6] * 3 + [9] * 32
    assert accept(ledger, turn) == 3, "as with one other turn"
    assert accept(ledger, other, batch="other/rows", tenant="other") == 3, "before the long batch of another tenant"

    for run_id in (first, *ids, turn, other):
        ledger.runs.cancel(run_id)
    assert accept(ledger, after, batch="acme/rows") == 3
    assert ledger.redis.hgetall(f"{shard_key(None, 7)}:rows") == {"acme": "1"}


def test_a_repeated_row_is_the_same_run(ledger: Ledger) -> None:
    rows = {f"run{number}": "{}" for number in range(300)}
    settings: dict[str, Any] = {
        "kind": "turn",
        "timeout_s": 60,
        "max_attempts": 3,
        "max_steps": 9,
        "labels": {},
        "retention_s": 60,
    }
    settings["queue"] = "coordinator"

    first = ledger.runs.accept_rows(rows, batch="/rows", definitions="{}", **settings)
    second = ledger.runs.accept_rows(rows, batch="/rows", definitions="{}", **settings)

    assert {each.result for each in first} == {"new"}
    assert {each.result for each in second} == {"known"}


def test_outcomes_of_many_runs_are_read_at_once(ledger: Ledger) -> None:
    outputs: dict[str, JsonValue] = {"run-a": "yes", "run-b": {"label": "x" * 100_000}}
    for name, output in outputs.items():
        play = Play(ledger, name)
        play.plan(work("answer"), terminals=("answer",))
        play.do("answer", output)
    failed, still = Play(ledger, "run-c"), Play(ledger, "run-d")
    failed.plan(work("answer"), terminals=("answer",))
    failed.fail("answer")

    over, gone = outcomes.ended(ledger, ["run-a", "run-b", "run-c", still.run_id, "run-e"])

    assert {run_id: (each.state, each.output) for run_id, each in over.items()} == {
        "run-a": ("succeeded", "yes"),
        "run-b": ("succeeded", {"label": "x" * 100_000}),
        "run-c": ("failed", None),
    }
    reason = over["run-c"].error
    assert reason
    assert reason.step == "answer"
    assert gone == {"run-e"}


def test_a_dropped_run_leaves_nothing(ledger: Ledger, valkey: Redis) -> None:
    done, failed, still = Play(ledger, "run-a"), Play(ledger, "run-b"), Play(ledger, "run-c")
    for play in (done, failed, still):
        play.plan(work("answer"), work("other"), terminals=("answer",))
    done.do("answer", "yes")
    done.do("other", "yes")
    failed.fail("answer")

    ledger.runs.drop(["run-a", "run-b", "run-c", "run-d"])
    ledger.leases.sweep_all()

    assert not [key for run_id in ("run-a", "run-b") for key in valkey.scan_iter(match=f"*:run:{run_id}*")]
    kept = {
        part: [shard for shard in range(SHARDS) if valkey.exists(f"{shard_key(None, shard)}:{part}")]
        for part in ("sizes", "finished")
    }
    assert kept == {"sizes": [], "finished": []}
    assert ledger.runs.status("run-c") == "running"


def test_rows_are_listed_only_by_a_search_so_that_they_hide_no_other_runs(ledger: Ledger) -> None:
    settings: dict[str, Any] = {
        "kind": "turn",
        "timeout_s": 60,
        "max_attempts": 3,
        "max_steps": 9,
        "retention_s": 60,
        "queue": "agents",
    }
    Play(ledger, "own")
    ledger.runs.accept_rows(
        {f"row{n}": "{}" for n in range(30)}, batch="/labels", definitions="{}", labels={"batch": "labels"}, **settings
    )

    assert [run.run_id for run in listing.find_page(ledger, listing.RunFilter()).runs] == ["own"]
    assert len(listing.find_page(ledger, listing.RunFilter(text="batch=labels")).runs) == 30


def test_a_batch_past_its_share_of_failures_is_posted_once_in_a_round(ledger: Ledger) -> None:
    alerts = {
        "tenth": Alert(on="batch_failures", webhook="ops"), "half": Alert(on="batch_failures", webhook="ops", share=0.5),
        "other": Alert(on="batch_failures", webhook="ops", name="multiplying"),
    }  # fmt: skip
    client = Client(
        url_of(ledger.redis),
        config=Definitions(webhooks={"ops": Webhook(url="https://hooks.example.com/ops")}, alerts=alerts),
    )
    batch = client.batches.open("sums", batch_target(chain="adding"))

    def deliver(first: int, status: RunState) -> list[str]:
        client.batches.deliver(batch, [BatchRow(row=row, status=status) for row in range(first, first + 10)])
        requests = (ledger.runs.request_of(record.run_id) for record in client.runs(most=100))
        return sorted(json.loads(text)["alert"] for kind, text, _, _ in requests if kind == "webhook")

    assert deliver(0, "failed") == [], "too few to judge"
    assert deliver(10, "succeeded") == ["tenth"]
    assert deliver(20, "failed") == ["half", "tenth"]
    assert deliver(30, "failed") == ["half", "tenth"]
    client.close()


@pytest.mark.parametrize(
    ("target", "row"), [("dialy", {"day": "monday"}), ("daily", "a text"), ("daily", {"text": "monday"})]
)
def test_a_batch_that_cannot_begin_leaves_its_name_free(ledger: Ledger, target: str, row: Row) -> None:
    node = ChainNode(node_id="note", kind="tool", name="note", input_map={"obj": "input.day"})
    daily = Definitions(
        tools={"note": Tool(function="json:dumps")}, chains={"daily": Chain(nodes=[node], entry_node="note")}
    )
    client = Client(url_of(ledger.redis), config=daily)

    with pytest.raises(ConfigError):
        client.feed_batch([row], chain=target, name="days")

    assert client.feed_batch([{"day": "monday"}], chain="daily", name="days").batch.state == "running"
    assert client.feed_batch([], chain="daily", name="none").batch.state == "done", "a file without rows"
    client.close()
