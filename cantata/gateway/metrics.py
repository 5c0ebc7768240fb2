"""What the gateway tells of the whole fleet: `/metrics` for Prometheus, `/load` for what scales workers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated
from urllib.parse import parse_qs

import structlog
from fastapi import APIRouter, Query, Request, Response
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field, StringConstraints

from cantata import __version__
from cantata.client.client import Client
from cantata.dispatch.queues import waiting
from cantata.errors import UnavailableError
from cantata.gateway.api.routes import ERRORS, CallerGrant
from cantata.health.facts import Unavailable
from cantata.health.probe import BackgroundCall
from cantata.models.constraints import NAME
from cantata.models.definitions import Definitions
from cantata.models.values import Value
from cantata.models.wire import RUN_OVER
from cantata.observability.metrics.families import BY_NAME
from cantata.observability.metrics.http_server import MetricsServer, ScrapeHandler, ScrapeResponse
from cantata.observability.metrics.registries import make_handler, registry
from cantata.observability.metrics.scrape_address import ScrapeAddress
from cantata.state.fleet import load
from cantata.state.fleet.load import FleetLoad, QueueLoad
from cantata.state.fleet.sizes import Sizes
from cantata.state.redis.connection import RedisFailure
from cantata.state.redis.redis_errors import reason

log = structlog.get_logger(__name__)

FRESH_S = 1.0  # what was gathered is told again for so long, however many ask
TIMEOUT_S = 4.0  # for what is gathered: those who scrape wait for 10 s, and are to hear that Redis is away
HUNG_S = 30.0  # what takes longer hangs, as with a host that is lost; it is tried anew beside it
MAX_QUEUES = 100  # queues that are remembered since somebody asked for them
REMEMBERED_S = 600.0  # since somebody last did: who scales by a queue asks every few seconds or minutes

Queue = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Queues = Annotated[list[Queue], Query(max_length=MAX_QUEUES, description="queues to tell of though nobody serves them")]


class LoadReport(Value):
    """How much work each queue has."""

    queues: dict[str, QueueLoad] = Field(description="queue → what waits there and who works on it")


FleetState = tuple[FleetLoad, dict[str, QueueLoad], float | None]
"""How the fleet stands, each queue, and about how many bytes of Redis are ours, if that can be measured."""


class FleetMonitor:
    """Gathers how the fleet stands, at most once a second, and says it to Prometheus and to autoscalers. Safe to use from many threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._named = set(load.USUAL_QUEUES)
        self._request_of: dict[str, float] = {}
        self._lock = threading.Lock()  # never held for longer than a look: whoever asks while Redis hangs hears of it in time
        self._gathering: BackgroundCall[FleetState] | None = None
        self._sizes = Sizes()
        self.page: ScrapeHandler = make_handler(registry(__version__, _FleetCollector(self)))

    def standing(self, named: Iterable[str] = ()) -> FleetState:
        """How the fleet stands. Raises UnavailableError, after seconds at most."""
        with self._lock:
            gathering = self._gathering_for(set(named))
        found = gathering.wait(gathering.started_at + TIMEOUT_S)
        if isinstance(found, Unavailable):
            raise UnavailableError(found.reason)
        return found

    def _gathering_for(self, named: set[str]) -> BackgroundCall[FleetState]:
        """What is being gathered or was a moment ago; it is begun anew if that is too old, or for queues that nobody named before."""
        now = time.monotonic()
        asked = {queue: at for queue, at in self._request_of.items() if now - at < REMEMBERED_S}
        taken = sorted(named - self._named - asked.keys())[: max(0, MAX_QUEUES - len(asked))]
        self._request_of = asked | dict.fromkeys([*(named & asked.keys()), *taken], now)
        known = self._gathering
        if known is None or taken or now - known.started_at > (FRESH_S if known.is_over else HUNG_S):
            known = self._gathering = BackgroundCall("Redis or the broker", self._gathered)
        return known

    def _gathered(self) -> FleetState:
        try:
            standing = load.measure(self._client.redis)
            served = {queue for worker in standing.workers for queue in worker.queues}
            waited_in = load.list_ready_queues(self._client.redis)
            with self._lock:
                self._named |= {*sorted(served)[:MAX_QUEUES], *_queues_in(self._client.definitions)}  # though nobody may serve them later
                named = sorted({*self._named, *self._request_of, *served, *waited_in})
            return standing, load.queues(standing, waiting(self._client.app, named)), self._sizes.estimate(self._client.redis)
        except RedisFailure as error:
            raise UnavailableError(reason(error)) from error

    def load(self, named: Iterable[str] = ()) -> LoadReport:
        """The load of the queues. Raises UnavailableError."""
        return LoadReport(queues=self.standing(named)[1])

    def load_page(self, query: str, _accept: str) -> ScrapeResponse:
        """The same, on the metrics port."""
        try:
            found = self.load(queue for queue in parse_qs(query).get("queue", []) if re.fullmatch(NAME, queue))
        except UnavailableError as error:
            return ScrapeResponse(503, "text/plain; charset=utf-8", f"{error}\n".encode())
        return ScrapeResponse(200, "application/json", found.model_dump_json().encode())

    def serve(self, scrape_address: ScrapeAddress) -> MetricsServer:
        """Serve both at a scrape_address of their own, to whoever reaches it. Raises UnavailableError."""
        return MetricsServer(scrape_address, {"/metrics": self.page, "/load": self.load_page})


def _queues_in(definitions: Definitions) -> set[str]:
    """The queues that a configuration names."""
    tools = [*definitions.tools.values(), *definitions.skills.values()]
    return {tool.queue for tool in tools} | {agent.queue for agent in definitions.agents.values()}


class _FleetCollector(Collector):
    def __init__(self, watch: FleetMonitor) -> None:
        self._watch = watch

    def collect(self) -> Iterable[Metric]:
        try:
            standing, queues, own_bytes = self._watch.standing()
        except UnavailableError as error:
            log.warning("fleet_not_seen", error=str(error))
            return [_single("cantata_redis_up", 0)]
        return [_single("cantata_redis_up", 1), *_of_runs(standing), *_of_queues(queues), *_of_redis(standing, own_bytes)]

    def describe(self) -> Iterable[Metric]:
        return []  # so that to register it asks Redis nothing


def _of_runs(standing: FleetLoad) -> Iterator[Metric]:
    yield _single("cantata_runs_accepted_total", standing.totals.get("accepted", 0))
    yield _labelled("cantata_runs_closed_total", {status: standing.totals.get(f"closed:{status}", 0) for status in sorted(RUN_OVER)})
    yield _single("cantata_runs_open", standing.runs_open)
    yield _single("cantata_runs_kept", standing.runs_kept)
    yield _single("cantata_steps_ready", standing.steps_ready)
    yield _single("cantata_leases_lost_total", standing.totals.get("lost", 0))
    yield _single("cantata_steps_recovered_total", standing.totals.get("recovered", 0))


def _of_queues(queues: Mapping[str, QueueLoad]) -> Iterator[Metric]:
    for part in ("ready", "leased", "slots", "workers"):
        yield _labelled(f"cantata_queue_{part}", {queue: getattr(each, part) for queue, each in queues.items()})
    yield _labelled("cantata_queue_oldest_wait_seconds", {queue: each.oldest_wait_s or 0.0 for queue, each in queues.items()})


def _of_redis(standing: FleetLoad, own_bytes: float | None) -> Iterator[Metric]:
    if standing.sweep_age_s is not None:
        yield _single("cantata_sweep_age_seconds", standing.sweep_age_s)
    yield _single("cantata_dead_letters", standing.dead_letters)
    yield _single("cantata_redis_memory_bytes", standing.memory_bytes)
    yield _single("cantata_redis_memory_limit_bytes", standing.memory_limit_bytes)
    if own_bytes is not None:
        yield _single("cantata_redis_memory_own_estimate_bytes", own_bytes)


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
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return made(family.name, family.help, labels=family.labels)


router = APIRouter(tags=["health"], responses=ERRORS)


def _watch(request: Request) -> FleetMonitor:
    watch: FleetMonitor = request.app.state.watch
    return watch


@router.get("/metrics", response_class=Response, responses={200: {"description": "in Prometheus's format", "content": {"text/plain": {}}}})
async def show_metrics(request: Request, caller: CallerGrant) -> Response:
    """The whole fleet, for Prometheus."""
    caller.require_fleet()
    answer = await request.app.state.service.call(partial(_watch(request).page, "", request.headers.get("accept", "")))
    return Response(answer.body, answer.status, media_type=answer.content_type)


@router.get("/load")
async def show_load(request: Request, caller: CallerGrant, queue: Queues = []) -> LoadReport:  # noqa: B006  # FastAPI copies it
    """What waits in each queue and what is under way: for autoscalers."""
    caller.require_fleet()
    found: LoadReport = await request.app.state.service.call(partial(_watch(request).load, queue))
    return found
