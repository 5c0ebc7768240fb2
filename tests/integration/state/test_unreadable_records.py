"""A record that nobody can read, in each list: it has a row that says so, and the others are listed as usual."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cantata.errors import ConfigError, StoredDataError
from cantata.features.batches.batch_store import BatchStore
from cantata.features.inbox import inbox
from cantata.features.inbox.inbox import InboxFilter
from cantata.features.sessions.sessions import Sessions
from cantata.flows.schedules import Schedule
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import run_key
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter
from tests.integration.features.batches.test_batches import begin
from tests.integration.features.schedules.test_schedules import DEFINITIONS, HOURLY, Scene, scene
from tests.integration.features.sessions.test_sessions import place, turns
from tests.integration.state.play import Play, wait

__all__ = ["scene"]

DEEP = "[" * 100_000 + "]" * 100_000
TEXT = "a text"


@pytest.fixture(autouse=True)
def emptied(ledger: Ledger) -> Iterator[None]:
    """What a test has damaged is in nobody's way."""
    yield
    ledger.redis.flushdb()


def damage(ledger: Ledger, key: str, fields: dict[str, str]) -> None:
    """Replace fields of a hash; without any, the hash by a text."""
    assert ledger.redis.exists(key)
    if fields:
        ledger.redis.hset(key, items=[text for pair in fields.items() for text in pair])
    else:
        ledger.redis.delete(key)
        ledger.redis.set(key, TEXT)


RUNS = [
    {}, {"labels": "no JSON"}, {"labels": DEEP}, {"labels": "[1]"}, {"input_tokens": "x"}, {"failures": "x"}, {"created_at": "soon"},
    {"waits": "x", "time_left": "1"}, {"error": "7"}, {"status": "odd"}, {"deliveries": "many"}, {"count": "x"},
]  # fmt: skip


@pytest.mark.parametrize("fields", RUNS, ids=lambda fields: " ".join(fields) or "another type")
def test_a_run_that_cannot_be_read_has_a_row_that_says_so_and_can_be_cancelled(
    ledger: Ledger, fields: dict[str, str]
) -> None:
    for run_id in ("good", "bad", "better"):
        Play(ledger, run_id, labels={"tenant": "acme"}).plan(wait("a"))
    damage(ledger, run_key(None, "bad"), fields)

    page = listing.find_page(ledger, RunFilter())
    newest = ledger.reader.newest()

    assert sorted(run.run_id for run in page.runs) == sorted(run.run_id for run in newest) == ["bad", "better", "good"]
    (row,) = (run for run in page.runs if run.run_id == "bad")
    (record,) = (run for run in newest if run.run_id == "bad")
    errors = [why for why in (row.unreadable, record.unreadable) if why]
    assert errors, "at least one of the lists needs the field"
    assert all("`submit runs cancel bad` ends it" in why for why in errors)
    assert {run.run_id for run in listing.find_page(ledger, RunFilter("acme", kind="turn")).runs} >= {"good", "better"}
    assert sum(listing.count(ledger, RunFilter()).counts.values()) >= 2
    if fields:
        assert ledger.runs.request_of("bad")[3].get("tenant") == "acme"
        assert ledger.runs.cancel("bad") == "cancelled"


def test_a_run_that_cannot_be_read_says_so(ledger: Ledger) -> None:
    Play(ledger, "bad").plan(wait("a"))
    damage(ledger, run_key(None, "bad"), {"labels": "no JSON"})

    with pytest.raises(StoredDataError, match=r"run 'bad': it cannot be read \(.*; `submit runs cancel bad` ends it"):
        ledger.reader.read("bad")


STEPS = [
    (":steps", "no JSON"),
    (":steps", '{"kind": "wait", "params": [1]}'),
    (":info", "no JSON"),
    (":info", DEEP),
    ("", "labels"),
    ("", ""),
]


@pytest.mark.parametrize(("part", "text"), STEPS, ids=lambda each: each[:20] or "run")
def test_a_wait_that_cannot_be_read_has_an_item_that_says_so(ledger: Ledger, part: str, text: str) -> None:
    for run_id in ("good", "bad", "better"):
        Play(ledger, run_id, labels={"of": "books"}).plan(wait("a", params={"wait": {"question": "Pay?"}}))
    damage(
        ledger,
        f"{run_key(None, 'bad')}{part}",
        {"labels": "no JSON"} if text == "labels" else {"a": text} if text else {},
    )

    found = inbox.find_page(ledger, InboxFilter()).items

    assert sorted(item.run_id for item in found) == ["bad", "better", "good"]
    (bad,) = (item for item in found if item.run_id == "bad")
    assert "`submit runs cancel bad` ends it" in bad.unreadable
    assert [item.question for item in found if item.run_id != "bad"] == ["Pay?", "Pay?"]
    for wanted in (InboxFilter(labels={"of": "books"}), InboxFilter(who="ann"), InboxFilter("")):
        assert {"good", "better"} <= {item.run_id for item in inbox.find_page(ledger, wanted).items}


SCHEDULES: list[dict[str, str]] = [
    {}, {"spec": "no JSON"}, {"spec": DEEP}, {"spec": "{}"}, {"request": "no JSON"}, {"labels": "[]"}, {"next": "soon"},
    {"next": "99999999999999999"}, {"fired": "x"}, {"created_at": "x"},
]  # fmt: skip


@pytest.mark.parametrize(
    "fields", SCHEDULES, ids=lambda fields: "".join(f"{name} {text[:8]}" for name, text in fields.items()) or "text"
)
def test_a_schedule_that_cannot_be_read_has_a_row_that_says_so_and_can_be_replaced_or_deleted(
    scene: Scene, fields: dict[str, str]
) -> None:
    for name in ("good", "bad", "better"):
        scene.schedules.create(name, HOURLY)
    (key,) = scene.ledger.redis.scan_iter("*:schedule:/bad")
    damage(scene.ledger, str(key), fields)

    found = {each.name: each for each in scene.schedules.list()}

    assert [*found] == ["bad", "better", "good"]
    assert "replace it, or delete it with `submit schedules delete bad`" in found["bad"].unreadable
    assert scene.schedules.get("bad").unreadable == found["bad"].unreadable
    with pytest.raises(ConfigError, match="replace it, or delete it"):
        scene.schedules.trigger("bad")
    if fields:
        scene.schedules.pause("bad", "look at it")
        scene.schedules.create("bad", HOURLY, replace=True)
        assert (scene.schedules.get("bad").unreadable, scene.schedules.get("bad").state) == ("", "paused")
        damage(scene.ledger, str(key), fields)
    scene.schedules.delete("bad")
    assert [each.name for each in scene.schedules.list()] == ["better", "good"]


def test_a_declared_schedule_that_cannot_be_read_is_replaced_when_schedules_are_applied(scene: Scene) -> None:
    declared = DEFINITIONS.model_copy(
        update={"schedules": {name: Schedule.model_validate(HOURLY) for name in ("bad", "good")}}
    )
    declaring = scene.with_definitions(declared).schedules
    declaring.apply()
    (key,) = scene.ledger.redis.scan_iter("*:schedule:/bad")
    damage(scene.ledger, str(key), {"spec": "no JSON"})

    changes = declaring.apply()

    assert [(change.kind, change.name) for change in changes] == [("changed", "bad")]
    assert [each.unreadable for each in scene.schedules.list()] == ["", ""]
    assert declaring.plan() == []


BATCHES: list[dict[str, str]] = [
    {},
    {"identity": "no JSON"},
    {"identity": DEEP},
    {"delivered": "x"},
    {"state": "odd"},
    {"labels": "7"},
]


@pytest.mark.parametrize(
    "fields", BATCHES, ids=lambda fields: "".join(f"{name} {text[:8]}" for name, text in fields.items()) or "text"
)
def test_a_batch_that_cannot_be_read_has_a_row_that_says_so(ledger: Ledger, fields: dict[str, str]) -> None:
    store = BatchStore(ledger, "acme")
    for name in ("good", "bad", "better"):
        begin(store, name)
    damage(ledger, store.key_of("bad"), fields)

    found = {each.name: each for each in store.newest()}

    assert {*found} == {"good", "bad", "better"}
    assert "`submit batch cancel bad --tenant acme` deletes it" in found["bad"].unreadable
    assert [found[name].unreadable for name in ("good", "better")] == ["", ""]


def test_a_conversation_whose_key_is_no_list_is_a_row_in_the_way_of_no_other(ledger: Ledger) -> None:
    sessions = Sessions(ledger, "acme")
    for name in ("good", "bad"):
        turns(ledger, ["hello"], place(name, tenant="acme"))
    (key,) = ledger.redis.scan_iter("*:session:acme/bad:queue")
    damage(ledger, str(key), {})

    found = {each.session: each for each in sessions.list()}
    assert (found["good"].waiting, found["good"].unreadable) == (1, "")
    assert "`submit sessions clear bad --tenant acme` deletes it" in found["bad"].unreadable
