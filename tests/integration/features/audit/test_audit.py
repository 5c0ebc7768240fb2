"""The audit log in a real Redis: its bounds, its order, its tenants, and what a failure leaves in it."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cantata.errors import ConfigError, UnavailableError
from cantata.features.audit import audit_store
from cantata.features.audit.actors import Actor, acting_as
from cantata.features.audit.audit import record_refusal, recorded
from cantata.features.audit.audit_store import MAX_REFUSALS, AuditEntry, AuditFilter, AuditStore
from cantata.ledger.ledger import Ledger

ANNA = Actor(name="anna", via="http", address="10.0.0.1", tenant="acme", verified=True)


@pytest.fixture(autouse=True)
def acting() -> Iterator[None]:
    with acting_as(ANNA):
        yield


def entries(ledger: Ledger, tenant: str | None = None, **wanted: Any) -> list[AuditEntry]:
    return [*AuditStore(ledger).iterate(AuditFilter(tenant, **wanted))]


def act(ledger: Ledger, tenant: str = "acme", target: str = "nightly", action: str = "schedule.pause") -> None:
    with recorded(ledger, action, tenant=tenant, target=target):
        pass


def test_an_action_has_one_entry_with_who_did_it_and_its_result(ledger: Ledger) -> None:
    with recorded(ledger, "run.cancel", tenant="acme", run_id="r1") as entry:
        (begun,) = entries(ledger)
        entry.detail = "the run is cancelled"

    (found,) = entries(ledger)
    assert (begun.action, begun.outcome) == ("run.cancel", "begun")
    assert found.model_dump(exclude={"id", "at"}) == {
        "action": "run.cancel", "outcome": "done", "by": "anna", "via": "http", "verified": True, "address": "10.0.0.1",
        "by_tenant": "acme", "tenant": "acme", "run_id": "r1", "target": "", "detail": "the run is cancelled", "unreadable": "",
    }  # fmt: skip


def test_a_name_that_the_caller_gives_is_a_claim(ledger: Ledger) -> None:
    with recorded(ledger, "run.signal", by="boss"):
        pass

    (found,) = entries(ledger)
    assert (found.by, found.verified, found.author) == ("boss", False, "boss (claimed)")


def test_a_token_that_acts_on_another_tenant_is_shown_with_its_own(ledger: Ledger) -> None:
    act(ledger, "acme")
    act(ledger, "other")

    assert [entry.author for entry in entries(ledger)] == ["anna (tenant 'acme')", "anna"]


def test_an_action_that_failed_or_changed_nothing_has_no_entry(ledger: Ledger) -> None:
    with pytest.raises(ConfigError), recorded(ledger, "batch.pause", tenant="acme"):
        raise ConfigError("it is over")
    with recorded(ledger, "batch.pause", tenant="acme") as entry:
        entry.was_done = False

    assert entries(ledger) == []


@pytest.mark.parametrize("error", [UnavailableError("Redis is away"), KeyboardInterrupt(), ValueError("a fault")])
def test_an_action_whose_end_is_not_known_keeps_its_entry(ledger: Ledger, error: BaseException) -> None:
    with pytest.raises(type(error)), recorded(ledger, "run.cancel", tenant="acme", run_id="r1"):
        raise error

    (found,) = entries(ledger)
    assert (found.outcome, found.run_id) == ("begun", "r1")


def test_without_an_entry_nothing_is_done(ledger: Ledger) -> None:
    unreachable = Ledger(Redis(unix_socket_path="/nowhere", retry=Retry(NoBackoff(), 0)), patience_s=0)
    done = []

    with pytest.raises(UnavailableError), recorded(unreachable, "run.cancel"):
        done.append(1)

    assert done == []


def test_a_refusal_says_why_and_is_no_action(ledger: Ledger) -> None:
    with recorded(ledger, "run.signal", tenant="acme", run_id="r1", target="ok") as entry:
        entry.refusal = "it is for others to answer"
    record_refusal(ledger, "run.cancel", "token 'anna' lacks the scope 'submit'", tenant="acme", run_id="r2")

    cancel, signal = entries(ledger, "acme")
    assert (cancel.outcome, cancel.detail) == ("refused", "token 'anna' lacks the scope 'submit'")
    assert (signal.outcome, signal.detail, signal.target) == ("refused", "it is for others to answer", "ok")


def test_refusals_push_out_no_action_and_no_tenant_pushes_out_another_s(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_AUDIT_ENTRIES", "20")
    act(ledger, "other")
    act(ledger, target="first")
    for number in range(MAX_REFUSALS + 5):
        record_refusal(ledger, "run.cancel", "no", tenant="acme", run_id=str(number))

    assert [entry.target for entry in entries(ledger, "acme", action="schedule")] == ["first"]
    assert len(entries(ledger, "acme", action="run.cancel")) == MAX_REFUSALS
    for number in range(25):
        act(ledger, target=str(number))
    assert [entry.target for entry in entries(ledger, "acme", action="schedule")] == [
        str(number) for number in range(24, 4, -1)
    ]
    assert len(entries(ledger, "other")) == 1


def test_an_entry_is_kept_for_so_many_days_and_no_key_is_without_an_expiry(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    act(ledger, target="old")
    (old,) = entries(ledger)
    monkeypatch.setattr(audit_store, "DAY_S", 0.001)  # 30 days are 30 ms
    keys = [*ledger.redis.scan_iter("cantata:*audit*")]
    assert len(keys) == 3
    assert all(0 < ledger.redis.pttl(key) <= 30 * 86_400_000 for key in keys)

    threading.Event().wait(0.05)  # longer than an entry is kept
    assert entries(ledger) == [], "it is not shown any more"
    monkeypatch.setenv("CANTATA_AUDIT_DAYS", "3000")  # 3 s
    act(ledger, target="middle")
    assert [entry.target for entry in entries(ledger)] == ["middle", "old"], "it is still there"
    monkeypatch.setenv("CANTATA_AUDIT_DAYS", "30")
    threading.Event().wait(0.05)
    act(ledger, target="new")
    monkeypatch.undo()

    assert [each["target"] for each in _stored(ledger, "done:acme")] == ["new"], "the next entry removed it"
    assert old.id not in [entry.id for entry in entries(ledger)]


def _stored(ledger: Ledger, stream: str) -> list[dict[str, Any]]:
    found = cast("list[tuple[str, dict[str, str]]]", ledger.redis.xrange(f"cantata:{{0}}:audit:{stream}"))
    return [json.loads(fields["e"]) for _, fields in found]


def test_pages_are_complete_and_in_order_over_all_tenants(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_store, "PIECE", 7)
    monkeypatch.setattr(audit_store, "STREAMS_AT_ONCE", 2)
    for number in range(60):
        act(ledger, f"tenant-{number % 9}", str(number))
    store, found, before = AuditStore(ledger), [], None
    while True:
        page = store.find_page(AuditFilter(), before=before, most=4)
        found += page.entries
        if (before := page.next) is None:
            break

    assert [int(entry.target) for entry in found] == [*range(59, -1, -1)]
    assert len({entry.id for entry in found}) == 60
    assert [int(entry.target) for entry in entries(ledger, "tenant-3")] == [57, 48, 39, 30, 21, 12, 3]


def test_filters_leave_what_they_name(ledger: Ledger) -> None:
    act(ledger, target="a")
    with acting_as(Actor(name="otto")), recorded(ledger, "run.cancel", run_id="r1"):
        pass
    newest, oldest = entries(ledger)

    assert [entry.by for entry in entries(ledger, by="otto")] == ["otto"]
    assert [entry.action for entry in entries(ledger, action="run")] == ["run.cancel"]
    assert [entry.action for entry in entries(ledger, action="run.cancel")] == ["run.cancel"]
    assert entries(ledger, action="run.can") == []
    assert [entry.run_id for entry in entries(ledger, run_id="r1")] == ["r1"]
    assert entries(ledger, since=newest.at + 1) == []
    assert [entry.id for entry in entries(ledger, "")] == [newest.id], "of no tenant"
    assert [entry.id for entry in entries(ledger, "acme")] == [oldest.id]


def test_another_position_is_refused(ledger: Ledger) -> None:
    for wrong in ("x", "1", "1-2-3", "", "-", "0-0", "00-0", "\u0661-\u0661"):
        with pytest.raises(ConfigError, match="is no position in the audit log"):
            AuditStore(ledger).find_page(AuditFilter("acme"), before=wrong)


def test_a_repeated_call_writes_one_entry(ledger: Ledger) -> None:
    call = ("audit/append", 0, "done:acme", 10, 60_000, "", '{"action": "x", "key": "k1"}')
    first, again = ledger.caller.call_shard(*call), ledger.caller.call_shard(*call)

    assert first == again
    assert len(_stored(ledger, "done:acme")) == 1


def test_an_action_whose_replies_are_lost_has_one_entry(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = itertools.cycle((True, False))
    monkeypatch.setattr("cantata.operation.fault_points.at", lambda point: point == "append-replied" and next(dropped))
    act(ledger)

    (found,) = entries(ledger)
    assert found.outcome == "done"


def test_an_entry_of_another_version_is_read_and_one_that_cannot_be_read_costs_no_other(ledger: Ledger) -> None:
    act(ledger, target="a")
    newer = {"action": "new.thing", "outcome": "pending", "by": "x", "via": "fax", "verified": True, "more": [1]}
    for text in (json.dumps(newer), "no JSON", json.dumps({"action": 5})):
        ledger.caller.call_shard("audit/append", 0, "done:acme", 10, 60_000, "", text)

    broken, no_json, known, last = entries(ledger, "acme")
    assert (known.action, known.outcome, known.via) == ("new.thing", "pending", "fax")
    assert all("cannot be read" in entry.unreadable for entry in (broken, no_json))
    assert last.target == "a"


def test_a_text_that_is_too_long_or_has_line_breaks_is_one_short_line(ledger: Ledger) -> None:
    act(ledger, target="a\nb\x1b" + "c" * 1000)

    (found,) = entries(ledger)
    assert found.target == "a b " + "c" * 296
