"""Metrics of the whole fleet: `/metrics` for Prometheus, `/load` for autoscalers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, get_args
from urllib.parse import parse_qs

import structlog
from fastapi import APIRouter, Query, Request, Response
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field, StringConstraints

from cantata import __version__
from cantata.client.client import Client
from cantata.client.failures import RedisFailure, reason
from cantata.client.fleet import queues_of
from cantata.client.records import (
    USUAL_QUEUES,
    BatchState,
    FleetLoad,
    LostWorker,
    PausedModel,
    QueueLoad,
    Worker,
    find_mixed,
    now,
)
from cantata.errors import UnavailableError
from cantata.flows.wire import RUN_OVER
from cantata.operation.health.facts import Unavailable
from cantata.operation.health.gather import BackgroundCall
from cantata.operation.metrics.families import BY_NAME
from cantata.operation.metrics.http_server import MetricsServer, ScrapeHandler, ScrapeResponse, make_handler, registry
from cantata.operation.metrics.scrape_address import ScrapeAddress
from cantata.surfaces.gateway.api.routes import ERRORS, CallerGrant
from cantata.values import NAME, Value

log = structlog.get_logger(__name__)

FRESH_S = 1.0  # a measurement is used again for so long, for any number of requests
TIMEOUT_S = 4.0  # for a measurement: Prometheus waits for 10 s, and must get that Redis is away
HUNG_S = 30.0  # a longer measurement hangs, for example with a lost host; another is started beside it
MAX_QUEUES = 100  # queues that are remembered because they were requested
REMEMBERED_S = 600.0  # after the last request: autoscalers ask every few seconds or minutes

Queue = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Queues = Annotated[
    list[Queue], Query(max_length=MAX_QUEUES, description="queues to include although no worker serves them")
]


class LoadReport(Value):
    """The load of each queue."""

    queues: dict[str, QueueLoad] = Field(description="queue → its waiting messages, leased steps and workers")


class FleetReport(LoadReport):
    """The workers and the load of each queue."""

    write_error: str = Field(
        default="",
        description="why Redis refuses writes; empty if it takes them. If not, workers cannot announce themselves: `workers` says nothing",
    )
    workers: list[Worker] = Field(description="the worker processes that were alive within the last seconds")
    lost_workers: list[LostWorker] = Field(
        description="workers that vanished without a shutdown or are frozen, for ten minutes, each with the steps that it had"
    )
    paused_models: list[PausedModel] = Field(
        description="models that nobody calls for a while, since their providers asked for that"
    )


FleetState = tuple[FleetLoad, dict[str, QueueLoad], float | None]
"""The fleet, the load of each queue, and the estimated bytes of Redis that are ours, if they can be measured."""


class FleetMonitor:
    """Measures the fleet, at most once a second, for Prometheus and autoscalers. Safe to use from many threads."""

    def __init__(self, client: Client) -> None:
        self._client, self._fleet = client, client.fleet
        self._named = set(USUAL_QUEUES)
        self._requested: dict[str, float] = {}
        self._lock = threading.Lock()  # held for microseconds only: requests while Redis hangs are answered in time
        self._gathering: BackgroundCall[FleetState] | None = None
        self.page: ScrapeHandler = make_handler(registry(__version__, _FleetCollector(self)))

    def measure(self, named: Iterable[str] = ()) -> FleetState:
        """Return the state of the fleet. Raises UnavailableError, after seconds at most."""
        with self._lock:
            gathering = self._gathering_for(set(named))
        found = gathering.wait(gathering.started_at + TIMEOUT_S)
        if isinstance(found, Unavailable):
            raise UnavailableError(found.reason)
        return found

    def _gathering_for(self, named: set[str]) -> BackgroundCall[FleetState]:
        """Return the current or last measurement; a new one if that is too old, or for queues that were not requested before."""
        now = time.monotonic()
        asked = {queue: at for queue, at in self._requested.items() if now - at < REMEMBERED_S}
        taken = sorted(named - self._named - asked.keys())[: max(0, MAX_QUEUES - len(asked))]
        self._requested = asked | dict.fromkeys([*(named & asked.keys()), *taken], now)
        known = self._gathering
        if known is None or taken or now - known.started_at > (FRESH_S if known.is_over else HUNG_S):
            known = self._gathering = BackgroundCall("Redis or the broker", self._gather)
        return known

    def _gather(self) -> FleetState:
        try:
            standing = self._fleet.load()
            served = {queue for worker in standing.workers for queue in worker.queues}
            ready_queues = self._fleet.ready_queues()
            with self._lock:
                self._named |= {
                    *sorted(served)[:MAX_QUEUES],
                    *queues_of(self._client.definitions),
                }  # they may lose their workers later
                named = sorted({*self._named, *self._requested, *served, *ready_queues, *standing.paused_queues})
            return standing, self._queue_loads(standing, named), self._fleet.estimated_bytes()
        except RedisFailure as error:
            raise UnavailableError(reason(error)) from error

    def _queue_loads(self, standing: FleetLoad, named: list[str]) -> dict[str, QueueLoad]:
        try:
            return self._fleet.queues(named, fleet=standing)
        except (UnavailableError, RedisFailure):
            if not standing.write_error:
                raise
            return {}  # a broker on the same Redis cannot be asked then; what is known is shown

    def load(self, named: Iterable[str] = ()) -> LoadReport:
        """Return the load of the queues. Raises UnavailableError."""
        return LoadReport(queues=self.measure(named)[1])

    def load_page(self, query: str, _accept: str) -> ScrapeResponse:
        """Answer a request for `/load` on the metrics port."""
        try:
            found = self.load(queue for queue in parse_qs(query).get("queue", []) if re.fullmatch(NAME, queue))
        except UnavailableError as error:
            return ScrapeResponse(503, "text/plain; charset=utf-8", f"{error}\n".encode())
        return ScrapeResponse(200, "application/json", found.model_dump_json().encode())

    def serve(self, address: ScrapeAddress) -> MetricsServer:
        """Serve `/metrics` and `/load` at an address of their own, without access control. Raises UnavailableError."""
        return MetricsServer(address, {"/metrics": self.page, "/load": self.load_page})


class _FleetCollector(Collector):
    def __init__(self, monitor: FleetMonitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterable[Metric]:
        try:
            standing, queues, own_bytes = self._monitor.measure()
        except UnavailableError as error:
            log.warning("fleet_unreadable", error=str(error))
            return [_single("cantata_redis_up", 0)]
        return [*_fleet_metrics(standing, own_bytes), *_queue_metrics(queues, knows_workers=not standing.write_error)]

    def describe(self) -> Iterable[Metric]:
        return []  # so that registration does not read Redis


def _fleet_metrics(standing: FleetLoad, own_bytes: float | None) -> Iterator[Metric]:
    yield _labelled(
        "cantata_runs_closed_total", {status: standing.totals.get(f"closed:{status}", 0) for status in sorted(RUN_OVER)}
    )
    yield _labelled(
        "cantata_webhooks_total", {status: standing.totals.get(f"delivered:{status}", 0) for status in sorted(RUN_OVER)}
    )
    yield _labelled(
        "cantata_batches", {state: standing.totals.get(f"batches:{state}", 0) for state in get_args(BatchState)}
    )
    yield _labelled(
        "cantata_batch_rows_total", {each: standing.totals.get(f"rows:{each}", 0) for each in ("succeeded", "failed")}
    )
    yield _labelled(
        "cantata_model_paused_seconds", {each.model: max(0.0, each.until - now()) for each in standing.paused_models}
    )
    values = {
        "cantata_redis_up": 1,
        "cantata_redis_writable": 0 if standing.write_error else 1,
        "cantata_code_modules_mixed": len(find_mixed(entry for worker in standing.workers for entry in worker.code)),
        "cantata_workers_without_code": None
        if standing.write_error
        else sum(bool(worker.code_faults) for worker in standing.workers),
        "cantata_runs_accepted_total": standing.totals.get("accepted", 0),
        "cantata_runs_open": standing.runs_open,
        "cantata_runs_waiting": standing.runs_waiting,
        "cantata_schedules_overdue": standing.schedules_overdue,
        "cantata_runs_kept": standing.runs_kept,
        "cantata_steps_ready": standing.steps_ready,
        "cantata_leases_lost_total": standing.totals.get("lost", 0),
        "cantata_steps_recovered_total": standing.totals.get("recovered", 0),
        "cantata_sweep_age_seconds": None if standing.write_error else standing.sweep_age_s,
        "cantata_workers_drained": None
        if standing.write_error
        else sum(worker.state != "serving" for worker in standing.workers),
        "cantata_workers_lost": None if standing.write_error else len(standing.lost_workers),
        "cantata_dead_letters": standing.dead_letters,
        "cantata_redis_memory_bytes": standing.memory_bytes,
        "cantata_redis_memory_limit_bytes": standing.memory_limit_bytes,
        "cantata_redis_memory_full_seconds": standing.memory_full_in_s,
        "cantata_redis_memory_own_estimate_bytes": own_bytes,
    }
    yield from (_single(name, value) for name, value in values.items() if value is not None)


def _queue_metrics(queues: Mapping[str, QueueLoad], *, knows_workers: bool) -> Iterator[Metric]:
    for part in ("ready", "leased", *(("slots", "workers") if knows_workers else ())):
        yield _labelled(f"cantata_queue_{part}", {queue: getattr(each, part) for queue, each in queues.items()})
    yield _labelled("cantata_queue_paused", {queue: float(each.paused is not None) for queue, each in queues.items()})
    yield _labelled(
        "cantata_queue_oldest_wait_seconds", {queue: each.oldest_wait_s or 0.0 for queue, each in queues.items()}
    )


def _single(name: str, value: float) -> Metric:
    metric = _metric(name)
    metric.add_metric([], value)
    return metric


def _labelled(name: str, values: Mapping[str, float]) -> Metric:
    metric = _metric(name)
    for label, value in values.items():
        metric.add_metric([label], value)
    return metric


def _metric(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    family = BY_NAME[name]
    metric_type = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return metric_type(family.name, family.help, labels=family.labels)


router = APIRouter(tags=["health"], responses=ERRORS)


def _monitor(request: Request) -> FleetMonitor:
    monitor: FleetMonitor = request.app.state.fleet_monitor
    return monitor


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "in Prometheus's format", "content": {"text/plain": {}}}},
)
async def show_metrics(request: Request, caller: CallerGrant) -> Response:
    """Metrics of the whole fleet, for Prometheus."""
    caller.require_fleet()
    answer = await request.app.state.service.call(
        partial(_monitor(request).page, "", request.headers.get("accept", ""))
    )
    return Response(answer.body, answer.status, media_type=answer.content_type)


@router.get("/load")
async def show_load(request: Request, caller: CallerGrant, queue: Queues = []) -> LoadReport:  # noqa: B006  # FastAPI copies it
    """Waiting and leased work of each queue, for autoscalers."""
    caller.require_fleet()
    found: LoadReport = await request.app.state.service.call(partial(_monitor(request).load, queue))
    return found


@router.get("/workers")
async def list_workers(request: Request, caller: CallerGrant) -> FleetReport:
    """Return the workers, and the load of each queue."""
    caller.require_fleet()
    standing, queues, _ = await request.app.state.service.call(_monitor(request).measure)
    return FleetReport(
        queues=queues,
        write_error=standing.write_error,
        workers=[*standing.workers],
        lost_workers=[*standing.lost_workers],
        paused_models=[*standing.paused_models],
    )
