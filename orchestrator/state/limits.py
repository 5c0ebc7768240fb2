"""Keeps the limits that all workers share: how often models may be asked, and what may be spent. `lua/limits_lib.lua` lists its keys.

A worker takes leave before a model call and settles after it. One that must wait holds nothing but its place in a line: it is told when
to ask again, and asks under the same run and step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Literal, cast

from redis import Redis
from redis.exceptions import NoScriptError

from orchestrator.models.definitions import Budget, Limits, Rates
from orchestrator.state import clock
from orchestrator.state.keys import key_of
from orchestrator.state.ledger import LEASE_S, Ledger

LIMITS_KEY = "{limits}"  # the prefix of all keys here, which lie in one slot
WINDOW_S = 60.0  # what `rpm` and `tpm` say
DAY_S = 86_400  # days are those of UTC, counted from 1970
NANO = 1_000_000_000  # money is counted in billionths of a dollar: whole numbers, so that sums are exact, and a token costs ten or more

Unit = Literal["tokens", "usd"]
Scope = Literal["run", "tenant", "day"]
Reason = Literal["rpm", "tpm", "concurrency", "pause", "budget"]

_LUA = files("orchestrator.state") / "lua"


@dataclass(frozen=True, slots=True)
class Ask:
    """A model call that a step is about to make."""

    holder: str
    """The name of the step's lease, `run|attempt|owner|step`: of this attempt alone."""
    model: str
    """As LiteLLM names it."""
    tokens: int
    """What it may use at most, read and written."""
    usd: float | None = None
    """What it may cost; None if the price is unknown."""
    tenant: str = ""
    run_timeout_s: float = 86_400.0
    """How long the run may last: its budget is remembered that long after each call, but a day at least."""

    @property
    def run_id(self) -> str:
        """The run that asks."""
        return self.holder.split("|", 1)[0]

    @property
    def ticket(self) -> str:
        """What its place in a line is kept under: the same in each attempt."""
        run_id, _attempt, _owner, step_id = self.holder.split("|", 3)
        return f"{run_id}|{step_id}"


@dataclass(frozen=True, slots=True)
class Granted:
    """The call may be made; it holds its slots until it is settled, or its holder no longer renewed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again after so many seconds; a place in the line is kept until 5 s past that."""

    seconds: float
    reason: Reason
    of: Literal["model", "tenant", "run", "day"]
    """Whose limit or budget it is."""
    ahead: int
    """Calls before this one in the line."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The call may cost more than a budget has left, so it is not made."""

    budget: Scope
    unit: Unit
    limit: float
    spent: float
    asked: float

    def __str__(self) -> str:
        name = f"limits.budgets.{self.budget}.{self.unit}"
        spent, limit, asked = (_amount(self.unit, amount) for amount in (self.spent, self.limit, self.asked))
        return f"{spent} of the {limit} of {name} are spent, and this call may take {asked}; raise the budget, or ask for less"


@dataclass(frozen=True, slots=True)
class Sooner:
    """A step that waits need not wait as long as it was told. If nobody tells it, it comes when it was told."""

    run_id: str
    step_id: str
    seconds: float
    """From now; 0 if it may ask at once."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """How a model's limits stand."""

    waiting: int
    """Calls in its line."""
    paused_s: float
    """How long nobody may ask it yet, since its provider said so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How the limits that a configuration names stand."""

    models: Mapping[str, Pressure]
    spent_tokens: int
    """Of all tenants today."""
    spent_usd: float


def standing(redis: Redis, models: Iterable[str]) -> Standing:
    """How the limits of these models stand, and what was spent today."""
    names, now, prefix = list(models), clock.learn(redis), key_of(redis, LIMITS_KEY)
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcard(f"{prefix}:model:{name}:line")
            pipe.get(f"{prefix}:model:{name}:pause")
        pipe.hmget(f"{prefix}:budget:day:{int(now // DAY_S)}", ["tokens", "nano"])
        *answers, (tokens, nano) = pipe.execute()
    pressures = (
        Pressure(int(line), max(0.0, int(until or 0) / 1000 - now)) for line, until in zip(answers[::2], answers[1::2], strict=True)
    )
    return Standing(dict(zip(names, pressures, strict=True)), int(tokens or 0), int(nano or 0) / NANO)


class Limiter:
    """Shared limits in Redis. Safe to share between threads; every call may be told twice."""

    def __init__(self, ledger: Ledger, *, window_s: float = WINDOW_S, lease_s: float = LEASE_S) -> None:
        """Use the ledger's connection, and have its patience."""
        self._ledger = ledger
        self._window_ms = str(int(window_s * 1000))
        self._lease_ms = str(int(lease_s * 1000))
        self._scripts: dict[str, tuple[str, str]] = {}
        self._loading = threading.Lock()

    def take(self, ask: Ask, limits: Limits) -> Granted | Wait | Exhausted:
        """Take leave to make a call: its slots, its share of the rates, and what it may cost. All or nothing."""
        answer = self._call(
            "limits_take", self._lease_ms, ask.holder, ask.ticket, str(max(1, ask.tokens)), _nano(ask.usd),
            str(int(ask.run_timeout_s * 1000)), *_rates(ask, limits), *_budgets(ask, limits),
        )  # fmt: skip
        match answer:
            case ["wait", wait_ms, reason, of, ahead]:
                return Wait(int(wait_ms) / 1000, reason, of, int(ahead))
            case ["exhausted", budget, unit, *amounts]:
                limit, spent, asked = (int(amount) / (NANO if unit == "usd" else 1) for amount in amounts)
                return Exhausted(budget, unit, limit, spent, asked)
            case _:
                return Granted()

    def settle(self, holder: str, *, tokens: int, usd: float | None) -> list[Sooner]:
        """Tell what a call used, nothing if it failed; answers the steps whose turn comes sooner by that, in order.

        `usd` is None if the price is unknown. Told late, after the holder was given up, it still counts as spent.
        """
        return _all_sooner(self._call("limits_settle", holder, str(tokens), _nano(usd)))

    def front(self, ask: Ask, limits: Limits, *, most: int = 20) -> list[str]:
        """The tickets at the front of the lines that `ask` would stand in."""
        return cast("list[str]", self._call("limits_front", str(most), *_rates(ask, limits)))

    def forget(self, ticket: str, ask: Ask, limits: Limits) -> list[Sooner]:
        """Take one that waits, and will never come, out of the lines that `ask` stands in; answers the steps whose turn comes sooner."""
        return _all_sooner(self._call("limits_forget", ticket, *_rates(ask, limits)))

    def renew(self, holders: Iterable[str]) -> None:
        """Keep what living holders have; those that have nothing are passed over. What is not renewed for a lease is given up."""
        self._call("limits_renew", self._lease_ms, *holders)

    def pause(self, model: str, seconds: float) -> None:
        """Have nobody ask a model for a while, since its provider said so."""
        if seconds > 0:
            self._call("limits_pause", model, str(int(seconds * 1000)))

    def _call(self, name: str, *args: str) -> list:  # type: ignore[type-arg]  # what Lua replies
        sha, text = self._script(name)
        redis = self._ledger.redis
        prefix = key_of(redis, LIMITS_KEY)

        def call() -> list:  # type: ignore[type-arg]  # what Lua replies
            try:
                return cast("list", redis.evalsha(sha, 1, prefix, self._window_ms, *args))  # type: ignore[type-arg]
            except NoScriptError:
                return cast("list", redis.eval(text, 1, prefix, self._window_ms, *args))  # type: ignore[type-arg]

        return self._ledger.patiently(call)

    def _script(self, name: str) -> tuple[str, str]:
        script = self._scripts.get(name)
        if script is None:
            with self._loading:
                text = self._text(name)
                script = self._scripts[name] = (sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
        return script

    def _text(self, name: str) -> str:
        return "\n".join((_LUA / f"{part}.lua").read_text() for part in ("limits_lib", name))


def _all_sooner(flat: Sequence[str]) -> list[Sooner]:
    return [_sooner(flat[i], int(flat[i + 1])) for i in range(0, len(flat), 2)]


def _sooner(ticket: str, wait_ms: int) -> Sooner:
    run_id, _, step_id = ticket.partition("|")
    return Sooner(run_id, step_id, wait_ms / 1000)


def _rates(ask: Ask, limits: Limits) -> Iterator[str]:
    """The tenant's and the model's, as the script wants them. A model without limits may still be paused."""
    named = [("model", ask.model, limits.models.get(ask.model, Rates()))]
    if ask.tenant in limits.tenants:
        named.insert(0, ("tenant", ask.tenant, limits.tenants[ask.tenant]))
    yield str(len(named))
    for word, name, rates in named:
        yield from (word, name, _text(rates.rpm), _text(rates.tpm), _text(rates.concurrency))


def _budgets(ask: Ask, limits: Limits) -> Iterator[str]:
    budgets = limits.budgets
    named: list[tuple[Scope, str, Budget]] = [
        ("run", ask.run_id, budgets.run),
        ("tenant", ask.tenant, budgets.tenant),
        ("day", "", budgets.day),
    ]
    for scope, name, budget in named:
        if budget != Budget():
            yield from (scope, name, _text(budget.tokens), _nano(budget.usd))


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _nano(usd: float | None) -> str:
    return "" if usd is None else str(round(usd * NANO))


def _amount(unit: Unit, amount: float) -> str:
    return f"{amount:,.0f} tokens" if unit == "tokens" else f"${amount:.6f}".rstrip("0").rstrip(".")
