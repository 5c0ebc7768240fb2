"""Mean costs of steps in ms, by configuration and work: measured by one process, and shared with the fleet.

They are durations, but processor time for advances of workflows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from redis import Redis

from cantata.flows.graph import Spec
from cantata.ledger.redis.keys import key_of

COSTS_KEY = "costs"  # hash: <beginning of a configuration's digest>|<work> -> mean milliseconds of a step
KEEP_S = 86_400  # after the last measurement
MAX_FIELDS = 1000  # every process reads them all each second; past it they are measured anew
DIGEST_SIZE = 16  # characters of a configuration's digest in a field's name
CHEAP_MS = 5.0  # a step that takes less is cheaper to run ahead than to send
WEIGHT = 0.2  # of a new measurement in the running mean

MIN_SAMPLES = 3  # measurements before a cost counts as known
MAX_UNSHARED = 1000  # kinds of work with fewer measurements, before they are forgotten

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


class Costs:
    """Running means in milliseconds, by configuration and work. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, float]] = {}
        self._unshared: dict[Work, Measured] = {}

    def record(self, definitions: str, name: str, took_ms: float) -> None:
        """Record a measurement of the work `name` of the configuration with the digest `definitions`."""
        work = (definitions[:DIGEST_SIZE], name)
        with self._lock:
            before = self._unshared.get(work)
            measured = self._unshared[work] = before.plus(took_ms) if before else Measured(1, took_ms)
            known = self._known.get(work[0], {}).get(name)
            if known is not None:
                self._known[work[0]][name] = mean_with(known, took_ms)
            elif measured.count >= MIN_SAMPLES:
                self._known.setdefault(work[0], {})[name] = measured.mean_ms

    def of(self, definitions: str, name: str) -> float | None:
        """Return the mean, or None while it is not known."""
        with self._lock:
            return self._known.get(definitions[:DIGEST_SIZE], {}).get(name)

    def is_cheap(self, definitions: str, spec: Spec) -> bool:
        """Return whether steps of this spec are known to be cheap."""
        if spec.cheap is not None or spec.decides:
            return bool(spec.cheap or spec.decides)
        cost = self.of(definitions, spec.work) if spec.work else None
        return cost is not None and cost < CHEAP_MS

    def cheap_names(self, definitions: str) -> str:
        """Return the names of cheap work, each between line feeds, as the ledger's scripts look them up."""
        with self._lock:
            known = self._known.get(definitions[:DIGEST_SIZE], {})
            return "\n" + "".join(f"{name}\n" for name, cost in known.items() if cost < CHEAP_MS)

    def exchange(self, share: Callable[[Mapping[Work, Measured]], dict[str, dict[str, float]]]) -> None:
        """Pass the measurements since the last exchange to `share`, and use the means of the fleet that it returns."""
        with self._lock:
            ready = {
                work: measured
                for work, measured in self._unshared.items()
                if measured.count >= MIN_SAMPLES or self._is_known(work)
            }
            for work in ready:
                del self._unshared[work]
            if len(self._unshared) > MAX_UNSHARED:
                self._unshared.clear()
        fleet_means = share(ready)
        with self._lock:
            self._known = fleet_means

    def _is_known(self, work: Work) -> bool:
        return work[1] in self._known.get(work[0], {})
