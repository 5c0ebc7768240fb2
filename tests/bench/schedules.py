"""Schedules: what a sweep takes without any and with thousands at rest, what each keeps in Redis, and how late runs start."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cantata.client.client import Client, EmbeddedClient
from cantata.engine.dispatch.celery_app import make_app
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata_workers.process.duties import sweep_once
from tests.bench.measure import database
from tests.waiting import until

SWEEPS = 200
DUE = 200  # schedules whose runs start within SPREAD_S, on a stack with workers
AHEAD_S, SPREAD_S = 8.0, 4.0
REST = {"cron": "0 7 1 1 *", "chain": {"nodes": [{"node_id": "a", "kind": "tool", "name": "noop"}], "entry_node": "a"}}
MAX_LATE_S = 1.0


@dataclass(frozen=True)
class ScheduleFigures:
    """Schedules at rest, and due."""

    schedules: int
    empty_ms: float
    rest_ms: float
    """the median of a sweep without schedules, and with all of them at rest"""
    kept_bytes: float
    """of a schedule, in Redis"""
    late_s: tuple[float, float]
    """from when a run was due to its start: the median, and the most"""


def measure_schedules(client: EmbeddedClient, schedules: int) -> ScheduleFigures:
    """Measure schedules at rest in another database, which no worker sweeps, and due ones on this stack."""
    url = database(client.redis_url, 3)
    app = make_app(url, "memory://")
    with Client(url, config=client.definitions) as other, connect(url) as redis:
        ledger = Ledger(redis)
        sweep_once(app, ledger)  # which loads the scripts
        before = int(redis.info("memory")["used_memory"])
        for number in range(schedules):
            other.schedules.create(f"rest-{number}", REST)
        kept = int(redis.info("memory")["used_memory"]) - before
        rest_ms = _sweep_ms(app, ledger)
        redis.flushdb()
        empty_ms = _sweep_ms(app, ledger)
    app.close()
    return ScheduleFigures(schedules, empty_ms, rest_ms, kept / schedules, _lateness(client))


def _sweep_ms(app: object, ledger: Ledger) -> float:
    took = []
    for _ in range(SWEEPS):
        since = time.perf_counter()
        sweep_once(app, ledger)  # type: ignore[arg-type]  # Celery has no types
        took.append((time.perf_counter() - since) * 1000)
    return statistics.median(took)


def _lateness(client: EmbeddedClient) -> tuple[float, float]:
    first = datetime.now(UTC) + timedelta(seconds=AHEAD_S)
    for number in range(DUE):
        at = first + timedelta(seconds=SPREAD_S * number / DUE)
        client.schedules.create(f"due-{number}", {"at": at.isoformat(), "chain": REST["chain"]})
    until(
        lambda: all(each.runs and each.runs[0].started_at for each in client.schedules.list()),
        "the runs",
        timeout_s=60.0,
    )
    late = [(run.started_at or 0) - run.scheduled_at for each in client.schedules.list() for run in each.runs]
    return statistics.median(late), max(late)
