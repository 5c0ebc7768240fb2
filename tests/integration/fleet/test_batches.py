"""Batches on a real fleet: each row once, whatever is killed, paused or repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cantata.client.client import EmbeddedClient
from cantata.errors import ConfigError
from cantata.features.batches import batch_feed
from cantata.features.batches.rows import BatchRow, Row, run_id_of_row
from cantata.ledger.redis.keys import SHARDS, shard_key
from cantata.ledger.runs import outcomes
from cantata.testing import ScriptedModels


@pytest.fixture(autouse=True)
def fresh_models(models: ScriptedModels) -> Iterator[None]:
    """Each test scripts its own replies."""
    models.clear()
    yield
    models.clear()


def kept_runs(client: EmbeddedClient) -> set[str]:
    return {
        str(run_id)
        for shard in range(SHARDS)
        for run_id in client.redis.zrange(f"{shard_key(client.redis, shard)}:runs", 0, -1)
    }


def outputs(rows: Sequence[BatchRow]) -> dict[int, object]:
    return {each.row: each.output for each in rows}


def test_each_row_is_answered_once_and_leaves_no_run(client: EmbeddedClient, models: ScriptedModels) -> None:
    before = kept_runs(client)
    rows: list[Row] = [{"text": f"row {number}", "id": number} for number in range(60)]

    found = [*client.batch(rows, agent="ann", name="each", concurrency=20)]

    assert sorted(each.row for each in found) == [*range(60)]
    assert all(each.output and each.input == rows[each.row] and not each.has_failed for each in found)
    assert sorted(str(entry["text"]) for entry in models.journal()) == sorted(
        f"ann <row {number}>" for number in range(60)
    )
    assert kept_runs(client) == before
    batch = client.batches.find("each")
    assert (batch.state, batch.total, batch.delivered, batch.failed) == ("done", 60, 60, 0)
    assert batch.usage.cost_usd
    assert [*client.batch(rows, agent="ann", name="each")] == []


def test_an_interrupted_batch_goes_on_and_asks_no_model_twice(client: EmbeddedClient, models: ScriptedModels) -> None:
    rows = [f"row {number}" for number in range(40)]
    first = client.batch(rows, agent="ann", name="torn", concurrency=8)
    begun = [next(first) for _ in range(10)]
    first.close()

    rest = [*client.batch(rows, agent="ann", name="torn", concurrency=8)]

    assert {each.row for each in begun} | {each.row for each in rest} == {*range(40)}
    assert len(models.journal()) == 40


def test_a_row_that_redis_lost_is_submitted_again_and_no_lost_announcement_is_waited_for(
    client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.script([{"match": "row 3>", "reply": "late", "delay_s": 30, "times": 1}, {"reply": "yes"}])
    monkeypatch.setattr(batch_feed, "CHECK_S", 0.3)
    monkeypatch.setattr(outcomes, "newly_ended", lambda ledger, batch: [])
    feed = client.feed_batch([f"row {number}" for number in range(4)], agent="ann", name="lossy", concurrency=4)
    groups = feed.groups()
    found: list[BatchRow] = []
    while not any("row 3>" in str(entry["text"]) for entry in models.journal()):  # it is under way
        found += (group := next(groups))
        feed.deliver(group)
    lost = run_id_of_row(feed.batch, 3)
    client.redis.delete(*client.redis.scan_iter(f"*:run:{lost}*", count=10_000))

    for group in groups:
        found += group
        feed.deliver(group)

    assert outputs(found) == dict.fromkeys(range(4), "yes")


def test_rows_are_ordered_if_asked_for(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"match": "row 0>", "delay_s": 0.5, "reply": "late"}, {"reply": "soon"}])

    found = [*client.batch([f"row {number}" for number in range(12)], agent="ann", ordered=True, concurrency=6)]

    assert [each.row for each in found] == [*range(12)]
    assert found[0].output == "late"


def test_failed_rows_are_rows_and_are_retried_alone(client: EmbeddedClient, models: ScriptedModels) -> None:
    rows: list[Row] = [{"a": number, "b": 1} for number in range(6)]
    rows[2] = {"a": "two", "b": 1}
    found = [*client.batch(rows, chain="adding", name="sums", concurrency=4)]
    assert outputs(found)[5] == 6
    assert [(each.row, each.error and each.error.step) for each in found if each.has_failed] == [(2, "one")]
    page = client.batches.failed("sums")
    assert [(each.row, each.error and each.error.code) for each in page.rows] == [(2, "tool_error")]

    client.batches.retry("sums")
    again = [*client.batch([{**row, "a": 9} for row in rows], chain="adding", name="sums")]  # type: ignore[dict-item]

    assert outputs(again) == {2: 10}
    assert client.batches.find("sums").state == "done"
    with pytest.raises(ConfigError, match="no row of it failed"):
        client.batches.retry("sums")


def test_a_batch_stops_before_it_costs_more_than_its_budget(client: EmbeddedClient, models: ScriptedModels) -> None:
    rows = [f"row {number}" for number in range(50)]
    cost = next(client.batch(rows[:1], agent="ann")).usage.cost_usd or 0
    assert cost > 0

    first = [*client.batch(rows, agent="ann", name="cheap", budget_usd=cost * 20.5)]

    assert 10 <= len(first) <= 20
    batch = client.batches.find("cheap")
    assert batch.state == "budget_spent"
    assert (batch.usage.cost_usd or 0) <= cost * 20.5
    rest = [*client.batch(rows, agent="ann", name="cheap", budget_usd=cost * 1000)]
    assert len(first) + len(rest) == 50


def test_a_paused_batch_submits_nothing_and_a_cancelled_one_ends(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    rows = (f"row {number}" for number in range(100_000))
    feed = client.feed_batch(rows, name="long", agent="ann", concurrency=4)
    groups = feed.groups()
    next(groups)
    client.batches.pause("long")
    while feed.batch.state != "paused" or feed.open_rows:
        feed.deliver(next(groups))
    asked = len(models.journal())
    assert [next(groups), next(groups)] == [[], []]
    assert len(models.journal()) == asked
    models.script([{"reply": "late", "delay_s": 60.0}])
    client.batches.resume("long")
    while len(models.journal()) < asked + 4:
        feed.deliver(next(groups))

    client.batches.cancel("long")

    for group in groups:
        feed.deliver(group)
    assert (feed.batch.state, feed.batch.failed) == ("cancelled", 4)
    assert not any(run.status in ("accepted", "running") for run in client.runs(most=100))


def test_a_turn_begins_while_thousands_of_rows_wait(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"match": "person", "reply": "hello"}, {"reply": "row", "delay_s": 0.02}])
    rows = client.batch((f"row {number}" for number in range(100_000)), agent="ann", name="crowd", concurrency=1000)
    next(rows)
    before = len(models.journal())

    run = client.submit_turn("a person", agent="bob")

    assert run.result(20).output == "hello"
    asked = [str(entry["text"]) for entry in models.journal()]
    assert asked.index("bob <a person>") - before < 100, "it did not wait for the rows before it"
    client.batches.cancel("crowd")
    rows.close()


def test_a_batch_of_another_tenant_or_another_target_is_not_taken(client: EmbeddedClient) -> None:
    assert len([*client.batch(["a"], agent="ann", name="own", labels={"tenant": "acme"})]) == 1

    assert client.batches.of("acme").find("own").delivered == 1
    with pytest.raises(ConfigError, match="there is no batch 'own'"):
        client.batches.find("own")
    with pytest.raises(ConfigError, match="was begun with another target"):
        next(client.batch(["a"], agent="bob", name="own", labels={"tenant": "acme"}))
    with pytest.raises(ConfigError, match="row 0 has no field 'text'"):
        next(client.batch([{"a": 1, "b": 2}], agent="ann"))
