"""Costs of work: measured by one process, and shared with the fleet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from cantata.engine.limits.step_costs import CHEAP_MS, DIGEST_SIZE, Measured, Work, mean_with
from cantata.flows.graph import Spec

MIN_SAMPLES = 3  # measurements before a cost counts as known
MAX_UNSHARED = 1000  # kinds of work with fewer measurements, before they are forgotten


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
            ready = {work: measured for work, measured in self._unshared.items() if measured.count >= MIN_SAMPLES or self._is_known(work)}
            for work in ready:
                del self._unshared[work]
            if len(self._unshared) > MAX_UNSHARED:
                self._unshared.clear()
        fleet_means = share(ready)
        with self._lock:
            self._known = fleet_means

    def _is_known(self, work: Work) -> bool:
        return work[1] in self._known.get(work[0], {})
