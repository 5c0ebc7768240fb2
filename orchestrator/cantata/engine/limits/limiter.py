"""Limits that all workers share: rate limits and budgets of model calls. `lib.lua` lists the keys.

A worker acquires a permit before a model call and settles it afterwards. A call that must wait only has a place in a queue. The sweep, and
each call that ends, grant permits to the first in the queues; the step of such a call then requests its permit again, by run and step.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from redis import Redis

from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from cantata.flows.wire import RUN_OVER
from cantata.ledger.intervals import LEASE_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import key_of, run_key
from cantata.ledger.redis.pieces import ask_each
from cantata.ledger.scripts import SCRIPTS, number_text

LIMITS_KEY = "{limits}"  # the prefix of all keys here, which lie in one slot
WINDOW_S = 60.0  # of `rpm` and `tpm`
MAX_PAUSE_S = 3600.0  # of a model, as `MAX_PAUSE` in `lib.lua` says
DAY_S = 86_400  # days are those of UTC, counted from 1970
MAX_CALLED = 100  # by one script, as `MAX_ENTRIES` in `lib.lua` says; fewer if that takes too many commands
NANO = 1_000_000_000  # money is counted in billionths of a dollar: whole numbers, so that sums are exact, and a token costs ten or more

Unit = Literal["tokens", "usd"]
Scope = Literal["run", "tenant", "day"]
Reason = Literal["rpm", "tpm", "concurrency", "pause", "budget"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A model call that a step is about to make."""

    holder: str
    """The name of the step's lease, `run|attempt|owner|step`: of this attempt alone."""
    model: str
    """As LiteLLM names it."""
    tokens: int
    """The most it may use, input and output."""
    usd: float | None = None
    """The most it may cost; None if the price is unknown."""
    tenant: str = ""

    @property
    def run_id(self) -> str:
        """The run of the call."""
        return self.holder.split("|", 1)[0]

    @property
    def ticket(self) -> str:
        """Its name in queues, the same in each attempt."""
        run_id, _attempt, _owner, step_id = self.holder.split("|", 3)
        return f"{run_id}|{step_id}"


@dataclass(frozen=True, slots=True)
class Granted:
    """The call may be made; it keeps its slots until it is settled, or its holder is no longer renewed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The call waits in a queue until it is called."""

    seconds: float
    """An estimate, for messages."""
    reason: Reason
    of: Literal["model", "tenant", "run", "day"]
    """The owner of the limit or budget."""
    ahead: int
    """Calls before this one in its queue."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The call may cost more than a budget has left, so it is not made."""

    budget: Scope
    unit: Unit
    limit: float
    spent: float
    requested: float

    def __str__(self) -> str:
        name = f"limits.budgets.{self.budget}.{self.unit}"
        spent, limit, requested = (_amount(self.unit, amount) for amount in (self.spent, self.limit, self.requested))
        return f"{spent} of the {limit} of {name} are spent, and this call may take {requested}; raise the budget, or ask for less"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The load of a model's limits."""

    waiting: int
    """Its calls in queues."""


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """The load of the limits that a configuration names."""

    models: Mapping[str, Pressure]
    spent_tokens: int
    """By all tenants today."""
    spent_usd: float


def read_usage(redis: Redis, models: Iterable[str]) -> LimitUsage:
    """Return the load of the limits of these models, and what was spent today."""
    names, now, prefix = list(models), clock.synchronize(redis), key_of(redis, LIMITS_KEY)
    queues = cast("list[str]", redis.zrange(f"{prefix}:queues", 0, -1))
    with redis.pipeline(transaction=False) as pipe:
        for queue in queues:
            pipe.zcard(f"{prefix}:queue:{queue}")
        pipe.hmget(f"{prefix}:budget:day:{int(now // DAY_S)}", ["tokens", "nano"])
        *lengths, (tokens, nano) = pipe.execute()
    waiting: Counter[str] = Counter()
    for queue, length in zip(queues, lengths, strict=True):
        with suppress(ValueError, LookupError, TypeError):  # one that cannot be read is given up by the next sweep
            waiting[json.loads(queue)[-1]] += int(length)
    pressures = {name: Pressure(waiting[f"model:{name}"]) for name in names}
    return LimitUsage(pressures, int(tokens or 0), int(nano or 0) / NANO)


@dataclass(frozen=True, slots=True)
class PausedModel:
    """A model that no call may be made of for a while, since its provider asked for that."""

    model: str
    """As LiteLLM names it."""
    since: float
    """Seconds since 1970."""
    until: float
    """When calls go on, seconds since 1970."""
    asked_s: float
    """The wait that the provider asked for, from `since`; it may be longer than the pause."""
    message: str
    """The provider's words."""


def read_pauses(redis: Redis) -> dict[str, float]:
    """Return until when, in seconds by Redis's clock, no call of a model may be made, at its provider's request; some may be over."""
    known = cast("dict[str, str]", redis.hgetall(f"{key_of(redis, LIMITS_KEY)}:pauses"))
    latest_ms = (clock.synchronize(redis) + MAX_PAUSE_S) * 1000 if known else 0.0
    return {model: int(until) / 1000 for model, until in known.items() if until.isdigit() and int(until) <= latest_ms}


def paused_models(redis: Redis) -> list[PausedModel]:
    """Return the models that are paused now, by name."""
    now, pauses = clock.synchronize(redis), read_pauses(redis)
    notes = cast("dict[str, str]", redis.hgetall(f"{key_of(redis, LIMITS_KEY)}:pause_notes")) if pauses else {}
    found = []
    for model, until in sorted(pauses.items()):
        note = _note(notes.get(model, "{}"))  # none by a worker of the version before
        if until > now:
            since = note.get("since_ms", now * 1000) / 1000
            found.append(PausedModel(model, since, until, note.get("asked_s", until - now), note.get("message", "")))
    return found


def is_limited(model: str, tenant: str, limits: Limits) -> bool:
    """Return whether calls of a model by a tenant count against any rate limit or budget."""
    rates = limits.models.get(model, Rates()), limits.tenants.get(tenant, Rates())
    return rates != (Rates(), Rates()) or limits.budgets != Budgets()


def _note(text: str) -> dict[str, Any]:
    """Return the note about a pause; an empty one if it cannot be read."""
    try:
        note = json.loads(text)
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


class Limiter:
    """Shared limits in Redis. Safe to share between threads; every call may be repeated."""

    scripts = SCRIPTS

    def __init__(self, ledger: Ledger, *, window_s: float = WINDOW_S, lease_s: float = LEASE_S) -> None:
        """Use the connection and the retries of a ledger."""
        self._ledger = ledger
        self._window_ms = str(int(window_s * 1000))
        self._lease_ms = str(int(lease_s * 1000))

    def take(self, ask: Ask, limits: Limits) -> Granted | Wait | Exhausted:
        """Acquire a permit for a call: its slots, its share of the rates, and the budget it may need. All or nothing."""
        call = {
            "tokens": max(1, ask.tokens), "nano": 0 if ask.usd is None else round(ask.usd * NANO),
            "limits": list(_rates(ask, limits)), "budgets": list(_budgets(ask, limits)),
        }  # fmt: skip
        answer = self._call("take", self._lease_ms, ask.holder, ask.ticket, json.dumps(call))
        match answer:
            case ["wait", wait_ms, reason, of, ahead]:
                return Wait(int(wait_ms) / 1000, reason, of, int(ahead))
            case ["exhausted", budget, unit, *amounts]:
                limit, spent, requested = (int(amount) / (NANO if unit == "usd" else 1) for amount in amounts)
                return Exhausted(budget, unit, limit, spent, requested)
            case _:
                return Granted()

    def settle(self, holder: str, *, tokens: int, usd: float | None) -> list[str]:
        """Record what a call used, nothing if it failed; return the tickets that get a permit by that, in order.

        `usd` is None if the price is unknown. A late call, after the holder was given up, still counts as spent.
        """
        return self._call("settle", holder, str(tokens), _nano(usd))

    def sweep(self, tickets: Iterable[str] = (), on_fault: Callable[[str, str], None] | None = None) -> list[str]:
        """Grant permits for which there is room, at most MAX_CALLED; return their tickets, and those of `tickets` that are in no queue.

        `on_fault` is called with each holder or ticket that could not be read since the last sweep, and the error: such a permit is given
        up, and such a call is asked for anew.

        Deletes the budgets of ended runs, an hour after their last change. The budget of an open run has no TTL: a Redis that evicts what
        expires must not forget what was spent.
        """
        called, runs, faults = cast("list[list[str]]", self._call("sweep", *tickets))
        if runs:
            statuses = self._ledger.with_retries(lambda: self._statuses(runs))
            ended = [
                run_id for run_id, status in zip(runs, statuses, strict=True) if status is None or status in RUN_OVER
            ]
            self._ledger.with_retries(lambda: self._delete_budgets(ended))
        if on_fault:
            for fault in map(json.loads, faults):
                on_fault(fault["item"], fault["error"])
        return called

    def forget(self, tickets: Iterable[str]) -> list[str]:
        """Remove calls that no longer wait from the queues; return the tickets that get a permit by that."""
        return self._call("forget", *tickets)

    def redate(self, holder: str) -> bool:
        """Count a call at the present time, since its request was sent late; return False if the call is no longer known."""
        return bool(self._call("redate", holder))

    def renew(self, holders: Iterable[str]) -> None:
        """Renew the permits of live holders; those without a permit are ignored. A permit that is not renewed for a lease is given up."""
        self._call("renew", self._lease_ms, *holders)

    def _statuses(self, runs: Sequence[str]) -> list[str | None]:
        redis = self._ledger.redis
        return ask_each(redis, runs, lambda pipe, run_id: pipe.hget(run_key(redis, run_id), "status"))

    def _delete_budgets(self, runs: Iterable[str]) -> None:
        redis, prefix = self._ledger.redis, key_of(self._ledger.redis, LIMITS_KEY)
        with redis.pipeline(transaction=True) as pipe:
            for run_id in runs:
                pipe.delete(f"{prefix}:budget:run:{run_id}")
                pipe.zrem(f"{prefix}:budgets", run_id)
            pipe.execute()

    def pause(self, model: str, seconds: float, *, asked_s: float | None = None, message: str = "") -> None:
        """Pause all calls of a model, at most for MAX_PAUSE_S. Its provider asked for `asked_s`, as long if None, in a `message`."""
        if seconds > 0:
            note = {
                "since_ms": round(clock.now() * 1000),
                "asked_s": seconds if asked_s is None else asked_s,
                "message": message,
            }
            self._call("pause", model, str(math.ceil(min(seconds, MAX_PAUSE_S) * 1000)), json.dumps(note))

    def pause_message(self, model: str) -> str:
        """Return the words with which a provider asked for the pause of a model; empty if they are not known."""
        key = f"{key_of(self._ledger.redis, LIMITS_KEY)}:pause_notes"
        note = self._ledger.with_retries(lambda: self._ledger.redis.hget(key, model))
        return str(json.loads(note)["message"]) if note else ""

    def resume(self, model: str) -> bool:
        """End the pause of a model; return False if it was not paused. The next sweep sends the calls that wait."""
        return bool(self._call("resume", model))

    def _call(self, name: str, *args: str) -> list[Any]:
        redis = self._ledger.redis
        key = key_of(redis, LIMITS_KEY)
        reply: list[Any] = self._ledger.with_retries(
            lambda: self.scripts.call(redis, f"limits/{name}", key, self._window_ms, *args)
        )
        return reply


def _rates(ask: Ask, limits: Limits) -> Iterator[tuple[str, ...]]:
    """Yield the limits of the tenant and of the model, as the script takes them. A model without limits may still be paused."""
    named = [("model", ask.model, limits.models.get(ask.model, Rates()))]
    if ask.tenant in limits.tenants:
        named.insert(0, ("tenant", ask.tenant, limits.tenants[ask.tenant]))
    for word, name, rates in named:
        yield (word, name, number_text(rates.rpm), number_text(rates.tpm), number_text(rates.concurrency))


def _budgets(ask: Ask, limits: Limits) -> Iterator[tuple[str, ...]]:
    budgets = limits.budgets
    named: list[tuple[Scope, str, Budget]] = [
        ("run", ask.run_id, budgets.run),
        ("tenant", ask.tenant, budgets.tenant),
        ("day", "", budgets.day),
    ]
    for scope, name, budget in named:
        if budget != Budget():
            yield (scope, name, number_text(budget.tokens), _nano(budget.usd))


def _nano(usd: float | None) -> str:
    return "" if usd is None else str(round(usd * NANO))


def _amount(unit: Unit, amount: float) -> str:
    return f"{amount:,.0f} tokens" if unit == "tokens" else f"${amount:.6f}".rstrip("0").rstrip(".")
