"""Runs are listed page by page: none twice, none left out, whatever comes meanwhile."""

from __future__ import annotations

import pytest
from redis import Redis

from cantata.errors import UnknownRunError
from cantata.ledger.conversations import scoped, shard_of_session
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import SHARDS, run_key, shard_key, shard_of
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter, find_page, iterate
from cantata.ledger.runs.summaries import RunSummary


def accept(
    ledger: Ledger,
    run_id: str,
    *,
    tenant: str = "",
    text: str = "hello",
    kind: str = "turn",
    session: str | None = None,
) -> str:
    place = None if session is None else RunSession(scoped(tenant, session), 60, 100, 1000)
    ledger.runs.accept(
        run_id,
        kind=kind,
        request=f'{{"text":"{text}"}}',
        definitions="{}",
        timeout_s=60,
        max_attempts=3,
        max_steps=9,
        labels={"tenant": tenant} if tenant else {},
        session=place,
    )
    return run_id


def backdate(ledger: Ledger, run_id: str, at_ms: int) -> None:
    """Have a run accepted then."""
    ledger.redis.hset(run_key(None, run_id), "created_at", at_ms)
    ledger.redis.zadd(f"{shard_key(None, shard_of(run_id))}:runs", {run_id: at_ms})


def ids(runs: list[RunSummary]) -> list[str]:
    return [run.run_id for run in runs]


def pages(ledger: Ledger, wanted: RunFilter, most: int) -> list[list[str]]:
    """All pages of a list."""
    found = [find_page(ledger, wanted, most=most)]
    while found[-1].next is not None:
        found.append(find_page(ledger, wanted, before=found[-1].next, most=most))
    return [ids(page.runs) for page in found]


def test_every_run_is_on_one_page_newest_first(ledger: Ledger) -> None:
    accepted = [accept(ledger, f"run-{number}") for number in range(300)]
    for number, run_id in enumerate(accepted):
        backdate(ledger, run_id, 1000 + number // 7)  # some at the same time

    listed = [run_id for page in pages(ledger, RunFilter(), 40) for run_id in page]

    order = sorted(accepted, key=lambda run_id: (1000 + accepted.index(run_id) // 7, run_id), reverse=True)
    assert listed == order


def test_runs_that_come_meanwhile_move_nothing(ledger: Ledger) -> None:
    older = {accept(ledger, f"older-{number}") for number in range(60)}
    first = find_page(ledger, RunFilter(), most=25)
    for number in range(60):
        accept(ledger, f"newer-{number}")

    listed = ids(first.runs)
    before = first.next
    while before is not None:
        page = find_page(ledger, RunFilter(), before=before, most=25)
        listed += ids(page.runs)
        before = page.next

    assert sorted(listed) == sorted(older)


def test_runs_are_found_by_tenant_status_kind_and_text(ledger: Ledger) -> None:
    for number in range(30):
        accept(ledger, f"other-{number}", tenant="you")
    accept(ledger, "chain", tenant="me", kind="chain")
    accept(ledger, "said", tenant="me", text="Größe der Bestellung 42", session="Anna B")
    ledger.runs.cancel(accept(ledger, "ended", tenant="me"))

    def found(tenant: str | None = "me", **wanted: object) -> list[str]:
        return sorted(ids(find_page(ledger, RunFilter(tenant, **wanted)).runs))  # type: ignore[arg-type]  # of several types

    assert found() == ["chain", "ended", "said"]
    assert found("nobody") == found("") == []
    assert len(found(None)) == 33
    assert found(statuses=("cancelled",)) == ["ended"]
    assert found(statuses=("cancelled", "accepted"), kind="chain") == ["chain"]
    for text in ("GRÖßE der", "42", "anna b", "SAID", "tenant=me"):
        assert "said" in found(text=text), text
    assert found(text="bestellung größe") == []
    (run,) = find_page(ledger, RunFilter("me", text="said")).runs
    assert (run.title, run.session, run.labels, run.count, run.left) == (
        "Größe der Bestellung 42",
        "Anna B",
        {"tenant": "me"},
        1,
        1,
    )
    assert run.created_at <= run.now


def test_runs_are_counted_by_status_and_found_between_two_times(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_s = 1_700_000_000  # times of filters lie between 2000 and 2200
    for number in range(6):
        backdate(ledger, accept(ledger, f"{number}", tenant="me", text="many"), 1000 * (start_s + 10 + number))
    ledger.runs.cancel("4")
    accept(ledger, "other", tenant="you")

    assert sorted(ids(find_page(ledger, RunFilter("me", since=start_s + 12, until=start_s + 14)).runs)) == [
        "2",
        "3",
        "4",
    ]
    assert listing.count(
        ledger, RunFilter("me", statuses=("failed",), since=start_s + 12, until=start_s + 14)
    ).counts == {
        "accepted": 2,
        "cancelled": 1,
    }
    assert listing.count(ledger, RunFilter("me", text="none", since=start_s + 12.001)).counts == {
        "accepted": 2,
        "cancelled": 1,
    }, "whatever the text"
    all_runs = listing.count(ledger, RunFilter())
    assert (all_runs.counts, all_runs.is_complete) == ({"accepted": 6, "cancelled": 1}, True)
    monkeypatch.setattr(listing, "MAX_SCANNED", SHARDS)
    assert not listing.count(ledger, RunFilter()).is_complete


def test_the_list_names_the_agent_of_a_turn_with_a_long_text(ledger: Ledger) -> None:
    accept(ledger, "long", text="ä" * 700 + '","agent":"writer')

    assert [run.target for run in find_page(ledger, RunFilter()).runs] == ["writer"]


def test_what_is_rare_is_found_in_bounded_steps(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_SCANNED_PER_ROUND", 128)
    monkeypatch.setattr(listing, "MAX_SCANNED", 128)
    for number in range(600):
        accept(ledger, f"run-{number}", tenant="rare" if number in (3, 300) else "")

    found = pages(ledger, RunFilter("rare"), 10)

    assert [run_id for page in found for run_id in page] == ["run-300", "run-3"]
    assert len(found) > 3, "a page may be short, or empty, though more follow"


def test_a_place_in_the_list_tells_nothing_of_other_tenants(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_SCANNED_PER_ROUND", 192)
    monkeypatch.setattr(listing, "MAX_SCANNED", 192)
    mine = [accept(ledger, f"{number}-mine", tenant="me") for number in range(10)]
    yours = [accept(ledger, f"{number}-yours", tenant="you") for number in range(590)]
    for number, run_id in enumerate(sorted(mine + yours)):
        backdate(ledger, run_id, 1000 + number // 2)  # two at each moment

    found, before = [], None
    while (page := find_page(ledger, RunFilter("me"), before=before, most=3)).next is not None:
        found += ids(page.runs)
        before = page.next
        assert "yours" not in before
    assert sorted([*found, *ids(page.runs)]) == sorted(mine)


def test_a_busy_session_hides_no_others(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_SCANNED_PER_ROUND", 128)
    shard = shard_of_session(scoped("", "busy"))
    others = [accept(ledger, f"other-{number}") for number in range(50)]
    for other in others:
        backdate(ledger, other, 1000)
    numbers = (number for number in range(100_000) if shard_of(f"busy-{number}") == shard)
    busy = [accept(ledger, f"busy-{next(numbers)}", session="busy") for _ in range(150)]

    listed = [run_id for page in pages(ledger, RunFilter(), 20) for run_id in page]

    assert len(listed) == 200
    assert set(listed[:150]) == set(busy)
    assert set(listed[150:]) == set(others)


def test_a_run_that_has_expired_is_passed_by(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "stays")
    valkey.zadd(f"{shard_key(None, shard_of('gone'))}:runs", {"gone": 1})

    assert pages(ledger, RunFilter(), 10) == [["stays"]]
    valkey.zrem(f"{shard_key(None, shard_of('gone'))}:runs", "gone")


def test_a_list_goes_on_behind_a_run(ledger: Ledger) -> None:
    accepted = [accept(ledger, f"run-{number}") for number in range(70)]
    for number, run_id in enumerate(accepted):
        backdate(ledger, run_id, 1000 + number)

    assert [run.run_id for run in iterate(ledger, RunFilter(), behind="run-60")] == accepted[59::-1]
    with pytest.raises(UnknownRunError):
        next(iterate(ledger, RunFilter(), behind="nope"))


def test_scripts_that_redis_forgot_are_sent_again(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "one")
    find_page(ledger, RunFilter())
    valkey.script_flush()

    assert ids(find_page(ledger, RunFilter()).runs) == ["one"]
