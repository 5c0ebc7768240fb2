"""The checks of `submit status`, for the pages: gathered at most every few seconds, whoever asks."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from cantata import __version__
from cantata.client.client import Client
from cantata.errors import UnavailableError
from cantata.operation.health import HealthReport, evaluate
from cantata.operation.health.checks import failing, report_of
from cantata.operation.health.facts import Facts, FleetFacts, Unavailable
from cantata.operation.health.gather import TIMEOUT_S, BackgroundCall, probe_service, read_fleet, read_redis
from cantata.surfaces.gateway.metrics import FleetMonitor

FRESH_S = 5.0
SPARE_S = 1.0  # for a gathering, beyond the time of its parts


class FleetHealth:
    """Health of the whole fleet. Safe to use from many threads."""

    def __init__(self, client: Client, monitor: FleetMonitor, *, flower: str = "") -> None:
        """`flower` is the address of Flower; one that is no URL is not checked."""
        self._url, self._monitor = client.redis_url, monitor
        self._flower = flower if flower.startswith(("http://", "https://")) else ""
        self._lock = threading.Lock()
        self._gathering: BackgroundCall[HealthReport] | None = None

    def report(self) -> HealthReport:
        """Return the checks, which are some seconds old at most."""
        with self._lock:
            known = self._gathering
            if known is None or (known.is_over and time.monotonic() - known.started_at > FRESH_S):
                known = self._gathering = BackgroundCall("Redis", self._gather)
        found = known.wait(known.started_at + TIMEOUT_S + SPARE_S)
        return report_of([failing("Redis", found.reason)]) if isinstance(found, Unavailable) else found

    def _gather(self) -> HealthReport:
        redis, fleet = BackgroundCall("Redis", read_redis, self._url), BackgroundCall("Redis", read_fleet, self._url)
        flower = BackgroundCall("", probe_service, "Flower", self._flower) if self._flower else None
        deadline = time.monotonic() + TIMEOUT_S
        server, probed = redis.wait(deadline), flower.wait(deadline) if flower else None
        found = server if isinstance(server, Unavailable) else fleet.wait(deadline)  # both have the same reason then
        return evaluate(
            Facts(
                version=__version__,
                redis=server,
                fleet=found if isinstance(found, Unavailable) else self._with_queues(found),
                services=[] if probed is None or isinstance(probed, Unavailable) else [probed],
            )
        )

    def _with_queues(self, found: FleetFacts) -> FleetFacts:
        try:
            load, queues, _ = self._monitor.measure(found.queue_names)
        except UnavailableError as error:
            return replace(found, queues=Unavailable(str(error)))
        return replace(found, load=load, queues={name: queues[name] for name in found.queue_names if name in queues})
