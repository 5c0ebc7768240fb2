"""How shared limits stand, for those who only look."""

from __future__ import annotations

from functools import partial

import pytest

from cantata.engine.fleet.clock_skip import bring_nearer
from cantata.engine.limits.limiter import (
    LIMITS_KEY,
    Ask,
    Granted,
    Limiter,
    Wait,
    is_limited,
    paused_models,
    read_pauses,
    read_usage,
)
from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata_workers.process.pauses import Pauses

LIMITS = Limits(models={"a/b": Rates(concurrency=1)}, budgets=Budgets(day=Budget(usd=10.0, tokens=10_000)))


def ask(step: str) -> Ask:
    return Ask(holder=f"run|1|worker~1|{step}", model="a/b", tokens=100, usd=0.5)


def test_what_waits_and_what_was_spent_today(ledger: Ledger) -> None:
    limiter = Limiter(ledger)
    assert isinstance(limiter.take(ask("one"), LIMITS), Granted)
    assert isinstance(limiter.take(ask("two"), LIMITS), Wait)

    waits = read_usage(ledger.redis, ["a/b", "c/d"])
    limiter.settle(ask("one").holder, tokens=90, usd=0.25)
    spent = read_usage(ledger.redis, ["a/b"])

    assert (waits.models["a/b"].waiting, waits.models["c/d"].waiting) == (1, 0)
    assert waits.spent_tokens == 0
    assert (spent.spent_tokens, spent.spent_usd) == (90, 0.25)


def test_a_paused_model_says_since_when_until_when_and_why(ledger: Ledger) -> None:
    limiter, now = Limiter(ledger), clock.synchronize(ledger.redis)
    limiter.pause("a/b", 60.0, asked_s=3600.0, message="slow down")
    limiter.pause("a/b", 5.0, asked_s=5.0, message="a shorter one")
    limiter.pause("c/d", 30.0)

    first, second = paused_models(ledger.redis)

    assert (first.model, first.asked_s, first.message) == ("a/b", 3600.0, "slow down")
    assert (round(first.since - now), round(first.until - now)) == (0, 60)
    assert (second.model, second.asked_s, second.message) == ("c/d", 30.0, "")


def test_a_pause_that_is_ended_is_over_for_the_calls_that_wait(ledger: Ledger) -> None:
    limiter = Limiter(ledger)
    limiter.pause("a/b", 60.0)
    assert isinstance(limiter.take(ask("one"), Limits()), Wait)

    assert (limiter.resume("a/b"), limiter.resume("a/b")) == (True, False)

    assert paused_models(ledger.redis) == []
    assert limiter.sweep() == ["run|one"]


def test_a_pause_of_decades_that_an_older_version_stored_counts_as_none(ledger: Ledger) -> None:
    limiter, until_ms = Limiter(ledger), int((clock.synchronize(ledger.redis) + 30 * 365 * 86_400) * 1000)
    ledger.redis.hset("cantata:{limits}:pauses", "a/b", str(until_ms))

    assert (read_pauses(ledger.redis), paused_models(ledger.redis)) == ({}, [])
    assert isinstance(limiter.take(ask("one"), Limits()), Granted)
    limiter.pause("a/b", 10.0)
    assert 9 < paused_models(ledger.redis)[0].until - clock.now() <= 10


def test_pauses_of_all_models_are_read_at_once_and_one_that_is_over_goes_with_the_next(ledger: Ledger) -> None:
    limiter, now = Limiter(ledger), clock.synchronize(ledger.redis)
    limiter.pause("a/b", 60.0)
    limiter.pause("c/d", 30.0)
    limiter.pause("a/b", 10.0)

    assert {name: round(until - now, -1) for name, until in read_pauses(ledger.redis).items()} == {"a/b": 60, "c/d": 30}

    bring_nearer(ledger.redis, 45.0)
    limiter.pause("e/f", 10.0)

    assert read_pauses(ledger.redis).keys() == {"a/b", "e/f"}
    assert 10_000 < int(ledger.redis.pttl(f"cantata:{LIMITS_KEY}:pauses")) <= 15_000


def test_a_process_knows_its_own_pauses_at_once_and_those_of_others_when_it_reads_them(ledger: Ledger) -> None:
    clock.synchronize(ledger.redis)
    ours, theirs = Pauses(Limiter(ledger)), Pauses(Limiter(ledger))
    ours.refresh(partial(read_pauses, ledger.redis))
    assert ours.may_hold("a/b"), "it has not read any yet"
    ours.refresh(partial(read_pauses, ledger.redis))
    assert not ours.may_hold("a/b")

    theirs.begin("a/b", 60.0)
    ours.begin("c/d", 60.0)

    assert [ours.may_hold(model) for model in ("a/b", "c/d", "e/f")] == [False, True, False]
    ours.refresh(partial(read_pauses, ledger.redis))
    assert [ours.may_hold(model) for model in ("a/b", "c/d", "e/f")] == [True, True, False]
    bring_nearer(ledger.redis, 61.0)
    ours.refresh(partial(read_pauses, ledger.redis))
    assert not ours.may_hold("a/b")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), False),
        (Limits(models={"a/b": Rates()}, tenants={"acme": Rates()}), False),
        (Limits(models={"c/d": Rates(rpm=1)}, tenants={"other": Rates(rpm=1)}), False),
        (Limits(models={"a/b": Rates(tpm=1)}), True),
        (Limits(tenants={"acme": Rates(concurrency=1)}), True),
        (Limits(budgets=Budgets(run=Budget(tokens=1))), True),
        (Limits(budgets=Budgets(tenant=Budget(usd=1.0))), True),
    ],
)
def test_a_call_is_limited_by_its_model_its_tenant_or_a_budget(limits: Limits, expected: bool) -> None:
    assert is_limited("a/b", "acme", limits) is expected
