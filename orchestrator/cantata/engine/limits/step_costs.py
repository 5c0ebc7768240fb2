"""Mean costs of steps in ms, by configuration and work, shared by the fleet: durations, and processor time of advances of workflows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from redis import Redis

from cantata.ledger.redis.keys import key_of

COSTS_KEY = "costs"  # hash: <beginning of a configuration's digest>|<work> -> mean milliseconds of a step
KEEP_S = 86_400  # after the last measurement
MAX_FIELDS = 1000  # every process reads them all each second; past it they are measured anew
DIGEST_SIZE = 16  # characters of a configuration's digest in a field's name
CHEAP_MS = 5.0  # a step that takes less is cheaper to run ahead than to send
WEIGHT = 0.2  # of a new measurement in the running mean

Work = tuple[str, str]
"""The digest of a configuration, and what a step of it does: `tools:lookup`. The same name in two configurations is two works."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one work that are not shared yet."""

    count: int
    mean_ms: float

    def plus(self, took_ms: float) -> Measured:
        """Return these and one more."""
        return Measured(self.count + 1, mean_with(self.mean_ms, took_ms))


def mean_with(mean_ms: float, took_ms: float) -> float:
    """Return a running mean after one more measurement."""
    return mean_ms + WEIGHT * (took_ms - mean_ms)


def share(redis: Redis, measured: Mapping[Work, Measured]) -> dict[str, dict[str, float]]:
    """Add measurements to those of the fleet; return what the fleet knows, as `known` does.

    If two processes share at the same moment, one measurement may be lost, which an estimate can bear.
    """
    key, costs = key_of(redis, COSTS_KEY), known(redis)
    if not measured:
        return costs
    is_full = sum(map(len, costs.values())) > MAX_FIELDS
    costs = {} if is_full else costs
    for (digest, name), each in measured.items():
        means = costs.setdefault(digest[:DIGEST_SIZE], {})
        before = means.get(name, each.mean_ms)
        means[name] = before + (1 - (1 - WEIGHT) ** each.count) * (each.mean_ms - before)
    with redis.pipeline(transaction=True) as pipe:
        if is_full:
            pipe.delete(key)
        for digest, name in measured:
            pipe.hset(key, f"{digest[:DIGEST_SIZE]}|{name}", f"{costs[digest[:DIGEST_SIZE]][name]:.4f}")
        pipe.expire(key, KEEP_S)
        pipe.execute()
    return costs


def known(redis: Redis) -> dict[str, dict[str, float]]:
    """Return mean milliseconds by work, by the beginning of the configuration's digest (DIGEST_SIZE characters)."""
    costs: dict[str, dict[str, float]] = {}
    for field, cost in cast("dict[str, str]", redis.hgetall(key_of(redis, COSTS_KEY))).items():
        digest, _, name = field.partition("|")
        with suppress(ValueError):  # it is measured anew
            costs.setdefault(digest, {})[name] = float(cost)
    return costs
