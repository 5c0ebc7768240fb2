"""The limiter's promises: exact edges, order, told twice, death, budgets, days; by a clock that the tests set."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from time import perf_counter

import pytest
from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY, Ask, Exhausted, Granted, Limiter, Wait
from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from cantata.ledger.ledger import Ledger
from tests.integration.state import contention, limits_stage
from tests.integration.state.contention import Load
from tests.integration.state.limits_stage import MODEL, Stage, holder, on_budget, on_model
from tests.integration.state.play import Play
from tests.waiting import at_best

DAY_S = 86_400.0


@pytest.fixture
def stage(valkey: Redis) -> Iterator[Stage]:
    """A limiter that knows nothing yet; what a test leaves must be sound."""
    valkey.flushdb()
    yield Stage(valkey)
    limits_stage.check(valkey)


# rates


def test_as_many_calls_go_as_the_limit_says_and_the_next_is_told_when(stage: Stage) -> None:
    limits = on_model(rpm=3)
    stage.sleep(0.25)

    for name in "abc":
        stage.goes(name, limits)

    assert stage.waits("d", limits) == Wait(61.75, "rpm", "model", 0)
    stage.sleep(61.749)
    assert stage.waits("d", limits) == Wait(20, "rpm", "model", 0), "about"
    stage.sleep(0.001)
    stage.goes("d", limits)


def test_a_call_counts_a_second_longer_than_a_minute_since_it_arrives_later_than_it_is_counted(stage: Stage) -> None:
    limits = on_model(rpm=1)
    stage.sleep(0.999)

    stage.goes("a", limits)

    assert stage.waits("b", limits).seconds >= 61


def test_tokens_are_counted_likewise(stage: Stage) -> None:
    limits = on_model(tpm=1000)

    stage.goes("a", limits, tokens=600)
    stage.sleep(10)
    stage.goes("b", limits, tokens=400)

    assert stage.waits("c", limits, tokens=600) == Wait(52, "tpm", "model", 0)
    assert stage.waits("d", limits, tokens=400) == Wait(52, "tpm", "model", 1)
    stage.sleep(51.999)
    assert stage.calls() == []
    stage.sleep(0.001)
    assert stage.calls() == ["c"]
    stage.goes("c", limits, tokens=600)
    stage.sleep(10)
    assert stage.calls() == ["d"]
    stage.goes("d", limits, tokens=400)


@pytest.mark.slow("windows pass by Redis's clock")
def test_a_window_holds_wherever_it_begins(stage: Stage) -> None:
    limits = on_model(rpm=10)
    went: list[int] = []

    for n in range(400):
        while stage.ask(str(n), limits) != Granted():
            stage.sleep(0.5)
        went.append(stage.now_ms)
        stage.sleep(0.7 if n % 7 else 9)

    assert all(later - early >= 60_000 for early, later in zip(went, went[10:], strict=False))


def test_what_was_not_used_of_the_tokens_is_free_at_once(stage: Stage) -> None:
    limits = on_model(tpm=1000)
    stage.goes("a", limits, tokens=1000)
    stage.waits("b", limits, tokens=500)
    stage.waits("c", limits, tokens=500)
    stage.sleep(1)

    assert stage.ends("a", tokens=300) == ["b"]

    stage.goes("b", limits, tokens=500)
    stage.sleep(1)
    assert stage.ends("b", tokens=200) == ["c"]
    stage.goes("c", limits, tokens=500)


def test_what_was_used_beyond_the_estimate_is_counted(stage: Stage) -> None:
    limits = on_model(tpm=1000)

    stage.goes("a", limits, tokens=100)
    stage.ends("a", tokens=950)

    assert stage.waits("b", limits, tokens=100) == Wait(62, "tpm", "model", 0)
    stage.sleep(62)
    stage.goes("b", limits, tokens=1000)
    stage.sleep(62)
    assert stage.ends("b", tokens=5000) == []
    stage.goes("c", limits, tokens=1000)


def test_a_call_larger_than_the_limit_goes_alone(stage: Stage) -> None:
    limits = on_model(tpm=1000)

    stage.goes("small", limits, tokens=1)
    assert stage.waits("huge", limits, tokens=5000) == Wait(62, "tpm", "model", 0)
    stage.sleep(62)
    stage.goes("huge", limits, tokens=5000)
    stage.waits("next", limits, tokens=1)
    stage.sleep(61.999)
    assert stage.calls() == []
    stage.sleep(0.001)
    stage.goes("next", limits, tokens=1)


# waiting


def test_those_who_wait_are_called_in_order_a_few_at_a_time(stage: Stage) -> None:
    limits = on_model(rpm=120)
    for n in range(120):
        stage.goes(f"first{n}", limits)
    told = [stage.waits(f"then{n}", limits) for n in range(120)]
    assert [wait.ahead for wait in told] == list(range(120))
    assert (told[0].seconds, told[-1].seconds) == (62, 62)
    stage.sleep(62)

    called: list[str] = []
    while len(called) < 120:
        now = stage.calls()
        assert 4 <= len(now) <= 12 or len(called) > 116, "twice a bucket's share, or a tenth of what is free"
        assert stage.calls() == [], "no more in this bucket"
        for name in now:
            stage.goes(name, limits)
        called += now
        stage.sleep(1)

    assert called == [f"then{n}" for n in range(120)]


def test_who_comes_late_does_not_overtake(stage: Stage) -> None:
    limits = on_model(rpm=2)
    stage.goes("a", limits)
    stage.goes("b", limits)
    stage.waits("c", limits)
    stage.waits("d", limits)
    stage.sleep(62)

    assert stage.waits("e", limits).ahead == 2

    assert stage.calls() == ["c"]
    stage.goes("c", limits)
    stage.sleep(1)
    assert stage.calls() == ["d"]
    stage.goes("d", limits)


def test_a_new_attempt_finds_its_place(stage: Stage) -> None:
    limits = on_model(rpm=1)
    stage.goes("a", limits)
    stage.waits("b", limits)
    stage.waits("c", limits)
    stage.sleep(62)

    assert stage.take(Ask(holder("b", attempt=2), MODEL, 1), limits) == Granted()


def test_who_is_called_and_does_not_come_gives_its_permit_to_the_next(stage: Stage) -> None:
    limits = on_model(rpm=1)
    stage.goes("a", limits)
    stage.waits("gone", limits)
    stage.waits("b", limits)
    stage.sleep(62)
    assert stage.calls() == ["gone"]

    stage.sleep(4.999)
    assert stage.calls() == []
    stage.sleep(0.001)

    assert stage.calls() == ["b"]
    stage.goes("b", limits)


def test_who_comes_after_others_went_is_still_before_those_who_asked_later(stage: Stage) -> None:
    limits = on_model(rpm=1)
    stage.goes("a", limits)
    for name in "bcd":
        stage.waits(name, limits)
    stage.sleep(62)
    assert stage.calls() == ["b"], "it is sent, and its message waits for a worker"
    stage.sleep(5)
    assert stage.calls() == ["c"]
    stage.goes("c", limits)

    assert stage.waits("b", limits).ahead == 0
    assert stage.waits("e", limits).ahead == 2


def test_who_comes_too_late_goes_at_once_if_there_is_room_still(stage: Stage) -> None:
    limits = on_model(rpm=2)
    stage.goes("a", limits)
    stage.goes("b", limits)
    for name in "cd":
        stage.waits(name, limits)
    stage.sleep(62)
    assert stage.calls() == ["c"]
    stage.sleep(6)

    stage.goes("c", limits)

    assert stage.calls() == [], "one in this bucket"


def test_a_place_is_kept_for_ten_minutes(stage: Stage) -> None:
    limits = on_model(concurrency=1)
    stage.goes("a", limits)
    for name in "bc":
        stage.waits(name, limits)
    assert stage.ends("a") == ["b"]

    stage.sleep(601)
    stage.renew([])
    assert stage.calls() == ["c"]
    stage.goes("c", limits)

    assert stage.waits("d", limits).ahead == 0
    assert stage.waits("b", limits).ahead == 1


def test_what_was_called_counts_for_nothing_until_it_comes(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(rpm=1, tpm=10, concurrency=1)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("a", limits, tokens=10)
    stage.waits("b", limits, tokens=10)
    stage.sleep(4)
    stage.ends("a", tokens=10)
    stage.sleep(58)
    assert stage.calls() == ["b"]
    stage.sleep(3)

    stage.goes("b", limits, tokens=10)

    stage.sleep(61)
    assert stage.ends("b", tokens=10) == []
    assert stage.waits("c", limits, tokens=10).reason == "rpm", "it counts from when it came"
    stage.sleep(1)
    stage.goes("c", limits, tokens=10)


def test_a_pause_holds_for_who_was_called_too(stage: Stage) -> None:
    limits = on_model(concurrency=1)
    stage.goes("a", limits)
    stage.waits("b", limits)
    assert stage.ends("a") == ["b"]
    stage.pause(MODEL, 10)

    assert stage.waits("b", limits).reason == "pause"

    stage.sleep(10)
    assert stage.calls() == ["b"]
    stage.goes("b", limits)


def test_a_call_that_leaves_later_than_it_was_counted_counts_from_then(stage: Stage) -> None:
    limits = on_model(rpm=1, tpm=100)
    stage.goes("a", limits, tokens=100)
    stage.sleep(4)

    assert stage.redate(holder("a"))
    assert stage.redate(holder("a"))

    assert stage.waits("b", limits, tokens=50).reason == "rpm"
    assert stage.settle(holder("a"), tokens=50, usd=None) == []
    assert not stage.redate(holder("a"))
    stage.sleep(61.999)
    assert stage.calls() == []
    stage.sleep(0.001)
    stage.goes("b", limits, tokens=100)


def test_a_large_call_is_not_starved_by_small_ones(stage: Stage) -> None:
    limits = on_model(tpm=100)
    for n in range(10):
        stage.goes(f"a{n}", limits, tokens=10)
        stage.sleep(6)

    stage.waits("large", limits, tokens=100)
    assert stage.waits("small", limits, tokens=10).ahead == 1
    stage.sleep(55)

    assert stage.calls() == [], "room for small ones is kept for the large one"
    stage.waits("smaller", limits, tokens=1)
    stage.sleep(1)
    assert stage.calls() == ["large"]
    stage.goes("large", limits, tokens=100)


def test_who_waits_for_his_tenants_limit_is_not_in_the_way_of_others(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(rpm=10)}, tenants={"acme": Rates(rpm=2)})
    for name in "ab":
        stage.goes(name, limits, tenant="acme")

    assert [stage.waits(f"c{n}", limits, tenant="acme").of for n in range(20)] == ["tenant"] * 20

    for n in range(8):
        stage.goes(f"d{n}", limits, tenant="other")
    assert stage.waits("e", limits).of == "model"
    stage.sleep(62)
    assert stage.calls() == ["c0"], "one in a bucket"
    stage.sleep(1)
    assert stage.calls() == ["c1"], "it asked before the other"
    stage.sleep(1)
    assert stage.calls() == ["e"]


def test_who_waits_for_the_model_goes_in_the_order_of_all_tenants(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=1)}, tenants={"acme": Rates(rpm=10), "small": Rates(rpm=1)})
    stage.goes("a", limits)
    for name, tenant in (("b", "acme"), ("c", ""), ("d", "small"), ("e", "small"), ("f", "acme"), ("g", "")):
        stage.waits(name, limits, tenant=tenant)

    went = []
    at = "a"
    for _ in range(5):
        (at,) = stage.ends(at)
        stage.goes(at, limits, tenant={"b": "acme", "d": "small", "f": "acme"}.get(at, ""))
        went.append(at)
        stage.sleep(1)
        stage.renew([holder(at)])

    assert went == list("bcdfg"), "the second of a tenant that may have one a minute waits for that"


def test_who_waits_for_the_model_is_before_others_of_his_tenant(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=1)}, tenants={"acme": Rates(concurrency=1)})
    stage.goes("a", limits)
    assert stage.waits("b", limits, tenant="acme").of == "model"

    assert stage.waits("c", limits, tenant="acme").ahead == 1

    assert stage.ends("a") == ["b"]
    stage.goes("b", limits, tenant="acme")
    assert stage.ends("b") == ["c"]


# concurrency


def test_no_more_calls_are_under_way_than_the_limit_says(stage: Stage) -> None:
    limits = on_model(concurrency=2)
    stage.goes("a", limits)
    stage.goes("b", limits)

    waits = [stage.waits(name, limits) for name in "cde"]

    assert [(wait.reason, wait.ahead) for wait in waits] == [("concurrency", 0), ("concurrency", 1), ("concurrency", 2)]
    assert [wait.seconds for wait in waits] == [0.5, 1.0, 1.5], "as if a call took a second"


def test_a_free_slot_goes_to_the_first_who_waits(stage: Stage) -> None:
    limits = on_model(concurrency=1)
    stage.goes("a", limits)
    for name in "bcd":
        stage.waits(name, limits)

    assert stage.ends("a") == ["b"]

    stage.waits("late", limits)
    assert stage.waits("c", limits).ahead == 0
    stage.goes("b", limits)
    assert stage.ends("b") == ["c"]


def test_who_will_never_come_gives_his_place_to_the_next(stage: Stage) -> None:
    limits = on_model(concurrency=1)
    stage.goes("a", limits)
    for name in "bcd":
        stage.waits(name, limits)
    assert stage.ends("a") == ["b"]

    assert stage.forget(["run|b"]) == ["run|c"]
    stage.goes("c", limits)


def test_one_who_was_woken_is_not_woken_again(stage: Stage) -> None:
    limits = on_model(concurrency=2)
    for name in "abcd":
        stage.ask(name, limits)

    assert stage.ends("a") == ["c"]
    assert stage.ends("b") == ["d"]


# told twice, and death


def test_a_call_asked_for_twice_is_counted_once(stage: Stage) -> None:
    limits = Limits(
        models={MODEL: Rates(rpm=2, tpm=20, concurrency=2)},
        tenants={"acme": Rates(rpm=2)},
        budgets=Budgets(run=Budget(tokens=20, usd=2)),
    )

    for _ in range(3):
        stage.goes("a", limits, tokens=10, usd=1, tenant="acme")

    stage.goes("b", limits, tokens=10, usd=1, tenant="acme")
    assert isinstance(stage.ask("c", limits, tenant="acme"), Wait)


def test_a_call_settled_twice_is_spent_once(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=1)}, budgets=Budgets(day=Budget(tokens=100)))
    stage.goes("a", limits, tokens=50)
    stage.waits("b", limits, tokens=50)

    assert stage.ends("a", tokens=50) == ["b"]
    assert stage.ends("a", tokens=50) == []

    stage.goes("b", limits, tokens=50)
    stage.ends("a", tokens=50)
    assert stage.ask("c", limits, tokens=51) == Exhausted("day", "tokens", 100, 50, 51)


def test_what_a_dead_worker_held_is_free_after_a_lease(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=1)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("dead", limits, tokens=100)
    assert stage.waits("b", limits, tokens=100).reason == "budget"

    stage.sleep(4.999)
    assert stage.waits("b", limits, tokens=100).reason == "budget"
    stage.sleep(0.001)

    stage.goes("b", limits, tokens=100)


def test_what_a_living_worker_holds_is_kept(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=1)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("a", limits, tokens=60)

    for _ in range(20):
        stage.sleep(4)
        stage.renew([holder("a"), holder("nothing")])
        assert stage.waits("b", limits, tokens=60).reason == "budget"
        assert stage.waits("other/b", limits, tokens=60).reason == "concurrency"

    stage.ends("a", tokens=60)
    stage.goes("other/b", limits, tokens=60)


def test_what_was_given_up_is_not_renewed_but_still_paid(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=1)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("frozen", limits, tokens=60)
    stage.sleep(6)
    stage.goes("b", limits, tokens=30)

    stage.renew([holder("frozen")])
    stage.ends("frozen", tokens=50)
    stage.ends("frozen", tokens=50)

    assert stage.waits("other/c", limits, tokens=30).reason == "concurrency", "b's slot is b's"
    stage.ends("b", tokens=20)
    assert stage.ask("d", limits, tokens=40) == Exhausted("run", "tokens", 100, 70, 40)


def test_a_cost_that_is_never_told_is_forgotten(stage: Stage) -> None:
    limits = on_budget(run=Budget(tokens=100))
    stage.goes("dead", limits, tokens=60)
    stage.sleep(6)
    stage.renew([])
    stage.sleep(3601)
    stage.renew([])

    assert stage.redis.exists("cantata:{limits}:permits", "cantata:{limits}:active", "cantata:{limits}:late") == 0


# pause


def test_nobody_asks_a_model_that_is_paused(stage: Stage) -> None:
    limits = on_model(rpm=100)
    stage.pause(MODEL, 30)
    stage.pause(MODEL, 10)
    stage.pause(MODEL, 0)

    assert stage.waits("a", limits) == Wait(30, "pause", "model", 0)
    assert stage.waits("other", Limits()) == Wait(30, "pause", "model", 1)

    stage.sleep(30)
    stage.goes("a", limits)
    stage.goes("other", Limits())


def test_after_a_pause_those_who_wait_are_called_in_turn(stage: Stage) -> None:
    limits = on_model(rpm=60)
    stage.pause(MODEL, 10)

    assert {stage.waits(f"a{n}", limits).seconds for n in range(9)} == {10}

    stage.sleep(9.999)
    assert stage.calls() == []
    stage.sleep(0.001)
    assert stage.calls() == [f"a{n}" for n in range(6)], "a tenth of what is free goes in this second"


def test_other_models_are_not_paused(stage: Stage) -> None:
    stage.pause("openai/another", 30)

    stage.goes("a", on_model(rpm=1))


# budgets


def test_a_budget_is_set_aside_then_spent(stage: Stage) -> None:
    limits = on_budget(run=Budget(usd=0.10))

    stage.goes("a", limits, usd=0.06)
    assert stage.waits("b", limits, usd=0.06) == Wait(1, "budget", "run", 0), "it may cost less than was set aside"
    stage.ends("a", usd=0.02)
    stage.goes("b", limits, usd=0.06)
    stage.ends("b", usd=0.06)

    exhausted = stage.ask("c", limits, usd=0.03)
    assert exhausted == Exhausted("run", "usd", 0.10, 0.08, 0.03)
    assert str(exhausted) == (
        "$0.08 of the $0.1 of limits.budgets.run.usd are spent, and this call may take $0.03; raise the budget, or ask for less"
    )
    stage.goes("d", limits, usd=0.02)


def test_the_edge_of_a_budget_belongs_to_it(stage: Stage) -> None:
    limits = on_budget(run=Budget(tokens=100))

    stage.goes("a", limits, tokens=100)
    stage.ends("a", tokens=100)

    assert stage.ask("b", limits, tokens=1) == Exhausted("run", "tokens", 100, 100, 1)


def test_a_call_that_failed_costs_nothing(stage: Stage) -> None:
    limits = on_budget(run=Budget(tokens=100, usd=1))

    stage.goes("a", limits, tokens=100, usd=1)
    stage.ends("a", tokens=0, usd=0)

    stage.goes("b", limits, tokens=100, usd=1)


def test_runs_tenants_and_days_have_budgets_of_their_own(stage: Stage) -> None:
    limits = on_budget(run=Budget(tokens=10), tenant=Budget(tokens=20), day=Budget(tokens=30))

    def spend(run_id: str, tenant: str) -> str:
        answer = stage.ask(f"{run_id}/a", limits, tokens=10, tenant=tenant)
        stage.ends(f"{run_id}/a", tokens=10)
        return answer.budget if isinstance(answer, Exhausted) else "spent"

    assert [spend("r1", "a"), spend("r1", "a")] == ["spent", "run"]
    assert [spend("r2", "a"), spend("r3", "a")] == ["spent", "tenant"]
    assert [spend("r4", "b"), spend("r5", "b")] == ["spent", "day"]


def test_a_new_day_has_its_own_budget_and_a_call_belongs_to_the_day_it_began(stage: Stage) -> None:
    limits = on_budget(tenant=Budget(tokens=100), day=Budget(tokens=100))
    stage.sleep(DAY_S / 2 - 1)
    stage.goes("a", limits, tokens=100, tenant="acme")
    stage.sleep(0.999)
    assert stage.waits("b", limits, tokens=100, tenant="acme").reason == "budget"

    stage.sleep(0.001)
    stage.goes("b", limits, tokens=100, tenant="acme")
    stage.ends("a", tokens=100)
    stage.ends("b", tokens=40)

    stage.goes("c", limits, tokens=60, tenant="acme")


def test_a_runs_budget_does_not_end_with_the_day(stage: Stage) -> None:
    limits = on_budget(run=Budget(tokens=100))
    stage.goes("a", limits, tokens=100)
    stage.ends("a", tokens=100)

    stage.sleep(3 * DAY_S)

    assert isinstance(stage.ask("b", limits), Exhausted)


def test_a_runs_budget_stays_until_the_run_is_over_then_goes(stage: Stage) -> None:
    ledger, key = Ledger(stage.redis), f"cantata:{LIMITS_KEY}:budget:run:run"
    Play(ledger)
    limits = Limits(models={MODEL: Rates(concurrency=1)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("a", limits, tokens=100)
    under_way = ("active", "permits", "budget:run:run", f"model:{MODEL}:slots")
    for name in under_way:
        assert stage.redis.pttl(f"cantata:{LIMITS_KEY}:{name}") == -1, "a Redis may evict what expires"
    stage.ends("a", tokens=100)

    stage.sleep(2 * 3600)
    stage.sweep()
    assert (stage.redis.hget(key, "tokens"), stage.redis.pttl(key)) == ("100", -1)
    ledger.runs.cancel("run")
    stage.sweep()
    assert stage.redis.exists(key) == 1, "the next look is an hour later"

    stage.sleep(2 * 3600)
    stage.sweep()
    assert stage.redis.keys(f"cantata:{LIMITS_KEY}:budget*") == []
    for key in stage.redis.scan_iter("cantata:{[0-9]*"):
        stage.redis.delete(key)


def test_the_cost_told_late_of_a_run_that_is_over_leaves_nothing(stage: Stage) -> None:
    limits = on_budget(run=Budget(tokens=100))
    stage.goes("gone/a", limits, tokens=100)
    stage.sleep(2 * 3600)
    stage.sweep()
    stage.ends("gone/a", tokens=100)

    stage.sleep(2 * 3600)
    stage.sweep()

    assert [key for key in stage.redis.scan_iter(f"cantata:{LIMITS_KEY}:*") if stage.redis.pttl(key) == -1] == []


def test_an_unknown_price_is_not_a_price_of_nothing(stage: Stage) -> None:
    limits = on_budget(run=Budget(usd=1.0))

    stage.goes("unpriced", limits, usd=None)
    stage.ends("unpriced", usd=None)
    stage.goes("priced", limits, usd=1.0)
    stage.ends("priced", usd=1.0)

    assert stage.ask("unpriced", limits, usd=None) == Exhausted("run", "usd", 1.0, 1.0, 0.0)


def test_one_whose_budget_is_exhausted_leaves_the_queue(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(rpm=1)}, budgets=Budgets(run=Budget(tokens=10)))
    stage.goes("a", limits, tokens=5)
    stage.waits("b", limits, tokens=5)
    assert stage.ends("a", tokens=9) == ["b"], "to be told"
    assert isinstance(stage.ask("b", limits, tokens=5), Exhausted)

    assert stage.waits("other/c", limits).ahead == 0


def test_those_who_wait_for_a_budget_are_called_when_a_call_did_not_need_its_share(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=10)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("a", limits, tokens=60)
    for name in ("b", "c"):
        assert stage.waits(name, limits, tokens=60).reason == "budget"
    stage.goes("other/a", limits, tokens=60)

    assert stage.ends("a", tokens=10) == ["b"]
    assert stage.calls() == []
    stage.goes("b", limits, tokens=60)
    assert stage.ends("b", tokens=10) == ["c"]


def test_those_who_wait_for_a_model_and_find_their_budget_held_are_not_in_the_way(stage: Stage) -> None:
    limits = Limits(models={MODEL: Rates(concurrency=2)}, budgets=Budgets(run=Budget(tokens=100)))
    stage.goes("other/a", limits)
    stage.goes("a", limits, tokens=60)
    stage.waits("b", limits, tokens=40)
    stage.waits("c", limits, tokens=40)
    stage.waits("other/b", limits)
    stage.waits("other/c", limits)

    assert stage.ends("other/a") == ["b"]
    stage.goes("b", limits, tokens=40)
    assert stage.ends("b", tokens=40) == ["other/b"], "c's budget is held"
    stage.goes("other/b", limits)
    assert stage.ends("a", tokens=20) == ["c"]


def test_who_waits_is_not_counted_and_sets_nothing_aside(stage: Stage) -> None:
    limits = Limits(
        models={MODEL: Rates(rpm=2, concurrency=1)},
        tenants={"acme": Rates(rpm=2, tpm=20)},
        budgets=Budgets(run=Budget(tokens=20)),
    )
    stage.goes("a", limits, tokens=10, tenant="acme")

    for _ in range(20):
        stage.waits("b", limits, tokens=10, tenant="acme")

    stage.ends("a", tokens=10)
    stage.sleep(1)
    stage.goes("b", limits, tokens=10, tenant="acme")


def test_a_tenant_may_have_any_name(stage: Stage) -> None:
    names = ["", "a:b", "ä|{x}", "run", "*"]
    limits = Limits(tenants={name: Rates(rpm=1) for name in names}, budgets=Budgets(tenant=Budget(tokens=1)))

    for n, name in enumerate(names):
        stage.goes(f"r{n}/a", limits, tenant=name)

    assert all(isinstance(stage.ask(f"s{n}/a", limits, tenant=name), Wait) for n, name in enumerate(names))


def test_scripts_that_redis_lost_are_told_again(stage: Stage) -> None:
    stage.redis.script_flush()

    stage.goes("a", on_model(rpm=1))


def test_a_clock_set_back_does_no_lasting_harm(stage: Stage) -> None:
    limits = on_model(rpm=2)
    stage.goes("a", limits)
    stage.sleep(-30)
    stage.goes("b", limits)
    assert stage.waits("c", limits).seconds == 62
    stage.sleep(-3600)

    stage.goes("c", limits)
    stage.sleep(122)
    stage.goes("d", limits)
    stage.goes("e", limits)


def test_the_scripts_say_what_is_theirs(stage: Stage) -> None:
    for name in ("take", "settle", "renew", "pause"):
        assert not re.search(r"'cantata:", stage.scripts.text(f"limits/{name}")), "keys are built from KEYS[1]"


# eight processes

MAX_LEFT = 0.07  # a rate's worth of calls takes 62/60 of a window, so 0.032 are left by design

MAX_DELAYED = 0.02  # of their time the processes may wait for a processor, if what they use is to tell of the limiter

CONTENTIONS = {
    "rpm": Load({"rpm": 480}, window_s=2.4, lasts_s=7.3),
    "tpm": Load({"tpm": 24_000}, window_s=2.4, lasts_s=7.3, tokens=100, used=60, hold_s=0.02),
    "concurrency": Load({"concurrency": 20}, window_s=2.4, lasts_s=7.3, hold_s=1.2),
}


@pytest.mark.slow("three windows of 2.4 s, by Redis's clock")
@pytest.mark.parametrize(
    "what",
    ["rpm", *(pytest.param(each, marks=pytest.mark.thorough("another limit")) for each in ("tpm", "concurrency"))],
)
def test_eight_processes_use_a_limit_up_and_never_exceed_it(stage: Stage, what: str) -> None:
    load = CONTENTIONS[what]
    limit = load.rates[what]

    def left() -> float:
        """How much of the limit was not used, by eight processes that never exceeded it; nothing, if they could not ask in time."""
        stage.redis.flushdb()
        log, delayed = contention.run(stage.redis, load)
        if what == "concurrency":
            most, used = max(under_way for _, _, under_way in log), mean_under_way(log)
        else:
            most, used = fullest_and_mean_window([at for at, what, _ in log if what == "take"], load.window_s * 1000)
            most, used = most * load.used, used * load.used
        print(f"{what}: at most {most / limit:.1%} of the limit, {used / limit:.1%} used")  # noqa: T201
        assert most <= limit * 1.01
        return 0.0 if delayed > MAX_DELAYED else 1 - used / limit

    assert at_best(left, MAX_LEFT) <= MAX_LEFT


def mean_under_way(log: list[tuple[int, str, int]], until_s: float = 7) -> float:
    """How many calls were under way on average, from the first on."""
    end = log[0][0] + until_s * 1000
    spans = ((min(until, end) - min(at, end)) * under_way for (at, _, under_way), (until, _, _) in pairwise(log))
    return sum(spans) / (end - log[0][0])


def fullest_and_mean_window(ats: list[int], window_ms: float, windows: int = 3) -> tuple[int, float]:
    """The most calls in any window, wherever it begins, and the mean of the first ones."""
    most = max(bisect_left(ats, at + window_ms) - n for n, at in enumerate(ats))
    return most, bisect_left(ats, ats[0] + windows * window_ms) / windows


def test_taking_and_settling_takes_little_more_than_a_round_trip(valkey: Redis) -> None:
    valkey.flushdb()
    limiter = Limiter(Ledger(valkey))
    rates = Rates(rpm=100_000, tpm=100_000_000, concurrency=1000)
    limits = Limits(
        models={MODEL: rates},
        tenants={"acme": rates},
        budgets=Budgets(**dict.fromkeys(("run", "tenant", "day"), Budget(usd=1e6, tokens=10**12))),
    )
    waiting = limits.model_copy(update={"models": {MODEL: Rates(rpm=1)}, "tenants": {}})
    echo = valkey.script_load("return 1")
    took: dict[str, list[float]] = {"evalsha": [], "take": [], "settle": [], "wait": []}

    def timed(what: str, call: Callable[[], object]) -> None:
        since = perf_counter()
        call()
        took[what].append((perf_counter() - since) * 1000)

    for n in range(1000):
        name = holder(f"run{n % 10}/step{n}")
        timed("evalsha", lambda: valkey.evalsha(echo, 1, "key"))
        timed("take", lambda name=name: limiter.take(Ask(name, MODEL, 1000, 0.01, "acme"), limits))  # type: ignore[misc]  # bound now
        timed("wait", lambda name=name: limiter.take(Ask(name + "w", MODEL, 1000, 0.01), waiting))  # type: ignore[misc]  # bound now
        timed("settle", lambda name=name: limiter.settle(name, tokens=900, usd=0.009))  # type: ignore[misc]  # bound now

    p50 = {what: median(times) for what, times in took.items()}
    print({what: f"{ms:.3f} ms" for what, ms in p50.items()})  # noqa: T201
    assert p50["take"] < 5 * p50["evalsha"] + 0.5
