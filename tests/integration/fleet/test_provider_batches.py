"""Batches in mode provider on a real fleet: a scripted provider answers them, and no row is asked twice, whatever is killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cantata.client.client import EmbeddedClient
from cantata.errors import ConfigError
from cantata.features.batches import batch_feed
from cantata.features.batches import rows as batch_rows
from cantata.ledger.redis.keys import run_key
from cantata.testing import ScriptedModels
from cantata.values import JsonValue
from tests.waiting import until


@pytest.fixture(autouse=True)
def fresh_models(models: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test scripts its own replies, and small batches of the provider."""
    monkeypatch.setattr(batch_rows, "PROVIDER_ROWS", 4)
    models.clear()
    yield
    models.clear()


def test_rows_are_answered_by_batches_of_the_provider(client: EmbeddedClient, models: ScriptedModels) -> None:
    before, rows = len(models.batches.created()), [f"row {number}" for number in range(10)]
    live = next(client.batch(rows[:1], agent="ann")).usage

    found = [*client.batch(rows, agent="ann", name="by-provider", mode="provider", ordered=True)]

    assert [(each.row, each.output) for each in found] == [
        (number, f"echo: ann <row {number}>") for number in range(10)
    ], found
    assert len(models.batches.created()) - before == 3
    assert found[0].usage.cost_usd == pytest.approx((live.cost_usd or 0) / 2)
    assert sorted(str(entry["text"]) for entry in models.journal() if entry["batch"]) == sorted(
        f"ann <{row}>" for row in rows
    )


def test_a_batch_is_looked_for_only_after_an_attempt_that_may_have_created_it(
    client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, create, list_batches = len(models.batches.created()), models.batches.create, models.batches._list
    searches: list[str] = []

    def create_and_cut(asked: dict[str, JsonValue]) -> dict[str, JsonValue]:
        create(asked)
        raise ConnectionResetError

    def list_counted(query: str) -> dict[str, JsonValue]:
        searches.append(query)
        return list_batches(query)

    monkeypatch.setattr(models.batches, "_list", list_counted)
    assert [row.output for row in client.batch(["a"], agent="ann", mode="provider")] == ["echo: ann <a>"]
    assert searches == []

    monkeypatch.setattr(models.batches, "create", create_and_cut)
    found = [*client.batch(["b"], agent="ann", mode="provider")]
    assert [row.output for row in found] == ["echo: ann <b>"], found

    assert len(searches) == 1
    assert len(models.batches.created()) - before == 2, (
        "the batch whose creation was not answered is the one that is read"
    )


def test_rows_whose_run_redis_lost_are_not_sent_again(
    client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_feed, "CHECK_S", 0.5)
    models.script([{"match": "row", "delay_s": 3600.0}])
    before = len(models.batches.created())
    feed = client.feed_batch(["row"], agent="ann", name="lost", mode="provider")
    groups = feed.groups()
    while len(models.batches.created()) == before:
        next(groups)
    run_id = batch_rows.run_id_of_row(feed.batch, 0)
    redis = client.ledger.redis
    until(lambda: redis.hexists(f"{run_key(redis, run_id)}:out", "create"), "the batch is recorded")

    redis.delete(*redis.scan_iter(f"{run_key(redis, run_id)}*"))
    until(
        lambda: next(groups) is not None and redis.hexists(f"{run_key(redis, run_id)}:out", "create"),
        "it is submitted anew",
    )
    for batch in models.batches._batches.values():
        batch["over_at"] = 0.0

    assert [row.output for group in groups for row in group] == ["echo: ann <row>"]
    assert len(models.batches.created()) == before + 1


def test_rows_that_failed_or_expired_are_errors_which_a_retry_sends_again(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    refused, expired = (
        {"match": "row 1>", "status": 400, "reply": "no", "times": 1},
        {"match": "row 5>", "expires": True, "times": 1},
    )
    models.script([refused, expired, {"delay_s": 1.5}])
    rows = [f"row {number}" for number in range(8)]

    found = {each.row: each for each in client.batch(rows, agent="ann", name="expiring", mode="provider")}

    codes = {row: each.error.code for row, each in found.items() if each.error}
    assert codes == {1: "batch_row_failed", 5: "batch_expired"}
    assert (found[6].output, found[6].status) == ("echo: ann <row 6>", "succeeded")
    page = client.batches.failed("expiring")
    assert [(row.row, row.error and row.error.code) for row in page.rows] == [
        (1, "batch_row_failed"),
        (5, "batch_expired"),
    ]
    models.clear()
    client.batches.retry("expiring")
    again = [*client.batch(rows, agent="ann", name="expiring", mode="provider")]
    assert sorted((each.row, each.output) for each in again) == [(1, "echo: ann <row 1>"), (5, "echo: ann <row 5>")]
    assert sorted(str(entry["text"]) for entry in models.journal()) == ["ann <row 1>", "ann <row 5>"]
    assert client.batches.find("expiring").state == "done"


def test_replies_of_a_provider_fit_the_schema_of_the_agent(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"match": "good", "reply": {"pick": "a"}}, {"reply": "neither"}])

    found = {each.row: each for each in client.batch(["good", "bad"], agent="picker", mode="provider")}

    assert found[0].output == {"pick": "a"}
    assert {each.row: each.error.code for each in found.values() if each.error} == {1: "bad_reply"}
    assert all("response_format" in request for request in models.requests)


def test_a_batch_of_a_provider_holds_no_worker_and_ends_when_it_is_cancelled(
    client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.script([{"match": "row", "delay_s": 3600.0}])
    before, refusals = len(models.batches.created()), itertools.count()
    cancel = models.batches.cancel
    monkeypatch.setattr(
        models.batches, "cancel", lambda name: cancel(name) if next(refusals) else (500, {"error": {"message": "no"}})
    )
    feed = client.feed_batch(
        [f"row {number}" for number in range(12)], agent="ann", name="parked", mode="provider", concurrency=8
    )
    groups = feed.groups()
    while len(models.journal()) < 8:
        next(groups)

    assert client.submit_turn("hello", agent="bob").result(20.0).output == "echo: bob <hello>"
    assert feed.open_rows == 8
    client.batches.cancel("parked")
    rest = [row for group in groups for row in group]
    assert sorted((row.row, row.status) for row in rest) == [(number, "cancelled") for number in range(8)]

    def of_provider() -> list[str]:
        return [str(batch["status"]) for batch in models.batches.created()[before:]]

    until(
        lambda: of_provider() == ["cancelled"] * 2,
        "the provider's batches are cancelled, though it refused that at first",
        40.0,
    )
    assert next(refusals) == 3


def test_a_batch_that_was_created_while_its_run_was_cancelled_is_found_and_cancelled(
    client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.script([{"match": "row", "delay_s": 3600.0}])
    before, create = len(models.batches.created()), models.batches.create
    feed = client.feed_batch(["row 1"], agent="ann", name="late", mode="provider")

    def cancel_then_create(asked: dict[str, JsonValue]) -> dict[str, JsonValue]:
        client.batches.cancel("late")
        return create(asked)

    monkeypatch.setattr(models.batches, "create", cancel_then_create)
    assert [row.status for group in feed.groups() for row in group] == ["cancelled"]

    until(
        lambda: [batch["status"] for batch in models.batches.created()[before:]] == ["cancelled"],
        "the batch is cancelled",
        40.0,
    )


def test_only_agents_are_asked_so(client: EmbeddedClient) -> None:
    with pytest.raises(ConfigError, match="name an agent"):
        client.feed_batch(["row"], mode="provider", team="row")
