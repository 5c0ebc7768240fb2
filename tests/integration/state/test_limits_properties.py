"""The limiter against a reference of its budgets, and its rates against a log: calls that come twice, late, or die, on any day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY, NANO, Ask, Exhausted, Granted, Scope, Unit, Wait
from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from tests.examples import examples
from tests.integration.state import limits_stage
from tests.integration.state.limits_stage import MODEL, Stage, holder

LEASE_MS = 5000
GRACE_MS = 5000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
TENANTS = ("", "acme")
UNITS: tuple[Unit, ...] = ("tokens", "usd")
Place = tuple[Scope, str]
"""A budget: whose, and of which run, tenant and day."""


@dataclass
class Call:
    """A call that went."""

    places: tuple[Place, ...]
    cost: dict[Unit, int]
    expires_ms: int
    is_late: bool = False
    is_called: bool = False
    """It holds its permit and has not come for it."""


class Purse:
    """What the limiter should say of budgets, in plain Python."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spent: Counter[tuple[Place, Unit]] = Counter()
        self.beyond: Counter[tuple[Place, Unit]] = Counter()
        """What was spent without having been set aside: calls that took more than they said, and those that were given up."""
        self.calls: dict[str, Call] = {}

    def places(self, run_id: str, tenant: str, now_ms: int) -> list[tuple[Place, Budget]]:
        """The budgets that a call now belongs to."""
        day, budgets = now_ms // DAY_MS, self.limits.budgets
        return [
            (("run", run_id), budgets.run),
            (("tenant", f"{day}:{tenant}"), budgets.tenant),
            (("day", str(day)), budgets.day),
        ]

    def held(self, place: Place, unit: Unit) -> int:
        """What calls under way may cost."""
        return sum(call.cost[unit] for call in self.calls.values() if place in call.places and not call.is_late)

    def ask(self, run_id: str, tenant: str, cost: dict[Unit, int], now_ms: int) -> Exhausted | str:
        """What a call is told: exhausted, `busy`, or `free`."""
        answer = "free"
        for place, budget in self.places(run_id, tenant, now_ms):
            for unit in UNITS:
                limit = limit_of(budget, unit)
                spent = self.spent[place, unit]
                if limit is not None and (spent + cost[unit] > limit or spent >= limit):
                    return Exhausted(place[0], unit, *(amount(unit, n) for n in (limit, spent, cost[unit])))
                if limit is not None and spent + self.held(place, unit) + cost[unit] > limit:
                    answer = "busy"
        return answer

    def settle(self, name: str, cost: dict[Unit, int]) -> None:
        """A call costs what it costs, once."""
        call = self.calls.pop(name, None)
        for place in call.places if call else ():
            for unit in UNITS:
                self.spent[place, unit] += cost[unit]
                self.beyond[place, unit] += (
                    cost[unit] if call and call.is_late else max(0, cost[unit] - (call.cost[unit] if call else 0))
                )

    def pass_time(self, now_ms: int) -> None:
        """Calls that were not renewed are given up, and forgotten if their cost is not told within the hour."""
        for name, call in list(self.calls.items()):
            if call.expires_ms <= now_ms and (call.is_late or call.is_called):
                del self.calls[name]
            elif call.expires_ms <= now_ms:
                call.is_late, call.expires_ms = True, now_ms + HOUR_MS


def limit_of(budget: Budget, unit: Unit) -> int | None:
    """A budget in whole numbers."""
    limit = budget.tokens if unit == "tokens" else budget.usd
    return None if limit is None else round(limit * (1 if unit == "tokens" else NANO))


def amount(unit: Unit, n: int) -> float:
    """A whole number as the limiter tells it."""
    return n / (1 if unit == "tokens" else NANO)


def limits() -> st.SearchStrategy[Limits]:
    """Limits that a few calls come up against."""
    few = st.none() | st.integers(1, 6)
    rates = st.builds(Rates, rpm=few, tpm=st.none() | st.integers(1, 300), concurrency=few)
    budget = st.builds(
        Budget, usd=st.none() | st.integers(0, 30).map(lambda n: n / 100), tokens=st.none() | st.integers(0, 900)
    )
    return st.builds(
        Limits,
        models=st.fixed_dictionaries({MODEL: rates}),
        tenants=st.fixed_dictionaries({"acme": rates}),
        budgets=st.builds(Budgets, run=budget, tenant=budget, day=budget),
    )


class _Open(Stage):
    """A limiter whose runs are all open."""

    def _statuses(self, runs: Sequence[str]) -> list[str | None]:
        return ["running"] * len(runs)


class Workers(RuleBasedStateMachine):
    """Steps of two runs that ask, wait, call, and die."""

    redis: ClassVar[Redis]

    @initialize(limits=limits())
    def start(self, limits: Limits) -> None:
        self.redis.flushdb()
        self.stage = _Open(self.redis)
        self.limits = limits
        self.purse = Purse(limits)
        self.went: dict[str, list[tuple[int, str, int]]] = {"model": [], "tenant": []}
        self.used: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self.asked: dict[str, tuple[str, dict[Unit, int]]] = {}
        """Of steps that wait: whose call it is, and what it may cost."""

    @rule(
        step=st.sampled_from(["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"]),
        tokens=st.integers(1, 200),
        cents=st.none() | st.integers(0, 12),
    )
    def ask(self, step: str, tokens: int, cents: int | None) -> None:
        """A step asks for a call; if it has one, it asks twice."""
        name = holder(step, self.attempts[step])
        call = self.purse.calls.get(name)
        if call and call.is_late:
            self.attempts[step] += 1
            return
        tenant = TENANTS[step in ("a/1", "b/1", "b/2")]
        cost: dict[Unit, int] = {"tokens": tokens, "usd": round((cents or 0) * NANO / 100)}
        usd = None if cents is None else cents / 100
        self.purse.calls.pop(ticket_of(step), None)
        expected = self.purse.ask(step[0], tenant, cost, self.stage.now_ms)
        self.asked[ticket_of(step)] = tenant, cost

        answer = self.stage.take(Ask(name, MODEL, tokens, usd, tenant), self.limits)

        if call:
            assert answer == Granted()
            call.expires_ms = self.stage.now_ms + LEASE_MS
        elif isinstance(expected, Exhausted):
            assert answer == expected
        elif expected == "busy":
            assert isinstance(answer, Wait)
            assert answer.reason == "budget"
        elif answer == Granted():
            self.note(step, name, tenant, cost)
        else:
            assert isinstance(answer, Wait)
            assert answer.seconds > 0
            assert answer.reason != "budget"

    @rule()
    def sweep(self) -> None:
        """Calls that wait are called where there is room."""
        self.called(self.stage.sweep())

    def called(self, tickets: list[str]) -> None:
        for ticket in tickets:
            if self.redis.hexists(
                f"cantata:{LIMITS_KEY}:permits", ticket
            ):  # others are called to be told that their budget is spent
                tenant, cost = self.asked[ticket]
                places = self.places(ticket[0], tenant)
                self.purse.calls[ticket] = Call(places, cost, self.stage.now_ms + GRACE_MS, is_called=True)

    def places(self, run_id: str, tenant: str) -> tuple[Place, ...]:
        return tuple(
            place for place, budget in self.purse.places(run_id, tenant, self.stage.now_ms) if budget != Budget()
        )

    def note(self, step: str, name: str, tenant: str, cost: dict[Unit, int]) -> None:
        self.purse.calls[name] = Call(self.places(step[0], tenant), cost, self.stage.now_ms + LEASE_MS)
        self.used[name] = cost["tokens"]
        for word in ("model", "tenant") if tenant else ("model",):
            self.went[word].append((self.stage.now_ms, name, cost["tokens"]))

    @precondition(lambda self: self.under_way())
    @rule(data=st.data(), tokens=st.integers(0, 250), cents=st.none() | st.integers(0, 15), again=st.booleans())
    def settle(self, data: st.DataObject, tokens: int, cents: int | None, again: bool) -> None:
        """A call ends, perhaps long after it was given up; it may be told twice."""
        name = data.draw(st.sampled_from(self.under_way()))
        cost: dict[Unit, int] = {"tokens": tokens, "usd": round((cents or 0) * NANO / 100)}
        self.purse.settle(name, cost)
        for _ in range(1 + again):
            self.called(self.stage.settle(name, tokens=tokens, usd=None if cents is None else cents / 100))
        run_id, _, _, step_id = name.split("|")
        self.attempts[f"{run_id}/{step_id}"] += 1
        self.used[name] = tokens

    @rule(seconds=st.sampled_from([0.001, 0.3, 1, 1, 3, 5, 30, 61, 3000, 43_200]))
    def sleep(self, seconds: float) -> None:
        """Time goes by; who does not renew is given up."""
        self.stage.sleep(seconds)
        self.purse.pass_time(self.stage.now_ms)
        self.stage.renew([])

    @rule(seconds=st.sampled_from([1, 4, 4.9]), times=st.integers(1, 20))
    def live(self, seconds: float, times: int) -> None:
        """Time goes by, and all renew."""
        for _ in range(times):
            self.stage.sleep(seconds)
            self.stage.renew(self.under_way())
            for call in self.purse.calls.values():
                if not call.is_late and not call.is_called:  # nobody gave it up yet, even if its lease had run out
                    call.expires_ms = self.stage.now_ms + LEASE_MS
            self.purse.pass_time(self.stage.now_ms)

    def under_way(self) -> list[str]:
        """Calls that went and are not settled."""
        return sorted(name for name, call in self.purse.calls.items() if not call.is_called)

    @invariant()
    def is_sound(self) -> None:
        """What lies in Redis agrees with itself and with the reference; no limit is exceeded."""
        limits_stage.check(self.redis)
        for (place, unit), spent in self.purse.spent.items():
            budget = next(budget for (scope, _), budget in self.purse.places("", "", 0) if scope == place[0])
            key = f"cantata:{LIMITS_KEY}:budget:{place[0]}:{place[1]}"
            assert int(self.redis.hget(key, "tokens" if unit == "tokens" else "nano") or 0) == spent
            limit = limit_of(budget, unit)
            if limit is not None:
                assert spent + self.purse.held(place, unit) <= limit + self.purse.beyond[place, unit], (
                    "never over by more than what was not told before"
                )
        for word, rates in (("model", self.limits.models[MODEL]), ("tenant", self.limits.tenants["acme"])):
            self.check_rates(self.went[word], rates)

    def check_rates(self, went: list[tuple[int, str, int]], rates: Rates) -> None:
        recent = [(name, tokens) for at, name, tokens in went if at > self.stage.now_ms - 60_000]
        assert len(recent) <= (rates.rpm or len(recent))
        under_way = {name for _, name, _ in went if name in self.purse.calls and not self.purse.calls[name].is_late}
        assert len(under_way) <= (rates.concurrency or len(under_way))
        if rates.tpm is not None and len(recent) > 1 and all(self.used[name] <= tokens for name, tokens in recent):
            assert sum(self.used[name] for name, _ in recent) <= max(rates.tpm, *(tokens for _, tokens in recent))

    def teardown(self) -> None:
        """Nobody who comes when he is called waits for ever."""
        if not hasattr(self, "stage"):
            return
        for name in self.under_way():
            self.stage.settle(name, tokens=0, usd=None)
        free = self.limits.model_copy(update={"budgets": Budgets()})
        waiting = {"c/1", "c/2", "c/3", "d/1", "d/2", "d/3"}
        called = [ticket_of(step) for step in sorted(waiting)]
        for _ in range(5000):
            for step in (ticket.replace("|", "/") for ticket in called):
                if step in waiting and self.stage.take(Ask(holder(step), MODEL, 20, None, "acme"), free) == Granted():
                    waiting.remove(step)
                    self.stage.settle(holder(step), tokens=20, usd=None)
            if not waiting:
                return
            self.stage.sleep(0.5)
            called = self.stage.sweep()
        raise AssertionError(f"{sorted(waiting)} wait for ever")


def ticket_of(step: str) -> str:
    """The ticket of a step."""
    return step.replace("/", "|")


@pytest.mark.slow("many histories of calls, each beside a reference")
@pytest.mark.timeout(600)  # to find the smallest way to fail, if it fails
def test_whatever_happens_no_limit_is_exceeded_and_budgets_are_as_in_the_reference(
    valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "redis", valkey, raising=False)
    run_state_machine_as_test(
        Workers,
        settings=settings(
            parent=examples(70),
            stateful_step_count=40,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
