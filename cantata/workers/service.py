"""A worker process from start to stop: Celery's signals tied to what the process holds."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import structlog
from billiard.process import active_children
from celery import signals

import cantata
from cantata import embedded
from cantata.config.user_code.function_names import IN_WORKER
from cantata.coordinator.sweeper import Sweeper, send_ready
from cantata.dispatch.celery_app import make_app
from cantata.errors import ConfigError
from cantata.models.constraints import checked_name
from cantata.observability.metrics.scrape_address import ScrapeAddress, scrape_address
from cantata.settings import settings
from cantata.state.fleet import registry
from cantata.state.fleet.clock_skip import SkipListener
from cantata.state.fleet.registry import Worker
from cantata.state.redis import clock, outages
from cantata.state.redis.connection import Redis, RedisFailure, check, connect
from cantata.state.runs.ledger import Ledger
from cantata.state.runs.records import Ready
from cantata.workers import tasks
from cantata.workers.code import config_preload, user_code
from cantata.workers.models import llm
from cantata.workers.runtime import resource_limits, shutdown_flush
from cantata.workers.runtime.consumer import Consumer
from cantata.workers.runtime.process import Process
from cantata.workers.tools import mcp

if TYPE_CHECKING:
    from cantata.observability.metrics.worker_metrics import WorkerMetrics

log = structlog.get_logger(__name__)

THREADS = 100  # model turns wait for the network, so many fit in one process
COORDINATORS = 4
ANNOUNCE_S = 1.0
SWEEP_PATIENCE_S = 1.0  # a sweep that waited for Redis to come back would run before owners have renewed
CLOSE_S = 3.0  # an MCP server that does not end by itself in 2 s is sent SIGTERM
HAND_BACK = signal.SIGUSR2  # tells a prefork child to give its step back
FINISH = embedded.FINISH

POOLS = {"coordinator": "threads", "agents": "threads"}
"""Pool of a queue; Python functions, and queues we do not know, get prefork: its children can be killed."""


class Service:
    """One Celery worker with one pool, serving queues."""

    def __init__(
        self, queues: tuple[str, ...], *, name: str, concurrency: int | None, redis_url: str, broker_url: str | None,
        shown: ScrapeAddress | None = None,
    ) -> None:  # fmt: skip
        """Metrics are shown at `shown`, or not at all."""
        self.queues = queues
        self.pool = POOLS.get(queues[0], "prefork")
        self.concurrency = concurrency or _usual_concurrency(queues[0])
        self.name = f"{name}@{socket.gethostname()}"
        self.redis_url = redis_url
        self.app = make_app(redis_url, broker_url)
        self.app.conf.worker_consumer = Consumer
        self.app.conf.worker_max_memory_per_child = resource_limits.recycle_above_kb()
        self._process: Process | None = None
        self._shown = shown
        self._metrics: WorkerMetrics | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._is_announced = False
        self._is_serving = False
        self._sweeper: Sweeper | None = None
        self._twin, self._twin_seen = "", 0.0
        self._finishing = mmap.mmap(-1, 1)  # shared with prefork children
        self._is_unhurried = False
        self._code: dict[int, dict[str, str]] = {}
        tasks.register(self.app, self)

    def process(self) -> Process:
        """What this operating system process holds; made anew in each prefork child."""
        with self._lock:
            if self._process is None:
                self._process = Process(
                    self.redis_url, self.name, is_child=self.pool == "prefork", send=self._send, is_finishing=self.is_finishing
                )
            return self._process

    def is_finishing(self) -> bool:
        """Whether another process serves the queues from now on, with newer code."""
        return bool(self._finishing[0])

    def _send(self, run_id: str, ready: Sequence[Ready]) -> None:
        send_ready(self.app, ((run_id, step) for step in ready))

    def run(self) -> int:
        """Serve until told to stop."""
        client = self.app.dead_letters = connect(self.redis_url)
        for warning in check(client, url=self.redis_url).warnings:
            log.warning("redis", warning=warning)
        if self._shown is not None:
            from cantata.observability.metrics.worker_metrics import WorkerMetrics  # noqa: PLC0415  # with it comes prometheus_client, which others need not load

            self._metrics = WorkerMetrics(self._shown, cantata.__version__)
            log.info("metrics_served", name=self.name, url=self._metrics.url)
        signal.signal(FINISH, self._finish)
        self._serve_code()
        if "agents" in self.queues:
            self._announce_always()
            embedded.announce_ready()  # LiteLLM takes seconds to load; a command need not wait for it, its agents' steps do
            llm.load()
        shutdown_flush.prepare(self.app)
        signals.worker_process_init.connect(self._child_started, weak=False)
        signals.worker_ready.connect(self._ready, weak=False)
        signals.worker_shutting_down.connect(self._going, weak=False)
        signals.worker_shutdown.connect(self._gone, weak=False)
        signals.worker_process_shutdown.connect(self._gone, weak=False)  # in a prefork child
        worker = self.app.Worker(  # not `worker_main`: to read a command line it loads half of `celery.bin`, in 0.2 s
            hostname=self.name, queues=list(map(self.app.broker_queue, self.queues)), pool=self.pool,
            concurrency=self.concurrency, loglevel=os.environ.get("CANTATA_LOG_LEVEL", "WARNING"), quiet=True, without_gossip=True,
            without_mingle=True,
        )  # fmt: skip
        gc.freeze()  # what there is now stays: nobody needs to look through it again, and children go on sharing its memory
        gc.enable()
        try:
            worker.start()
        finally:
            if self._sweeper is not None:
                self._sweeper.stop()
            if self._metrics is not None:
                self._metrics.close()
        return int(worker.exitcode or 0)

    def _serve_code(self) -> None:
        """Serve one version of the user's code, and tell the stack and the fleet which."""
        read, write = os.pipe()  # children inherit its end
        threading.Thread(target=self._pass_on_code, args=(read,), name="code", daemon=True).start()

        def report(line: str) -> None:
            os.write(write, os.fsencode(f"{line}\n"))

        user_code.serve(report, is_replaced=embedded.is_inside())
        if self.queues != ("coordinator",):
            config_preload.adopt()

    def _pass_on_code(self, read: int) -> None:
        with os.fdopen(read, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                what, *told = line.rstrip("\n").split("\t")
                if what == "code":
                    pid, module, digest = told
                    self._code.setdefault(int(pid), {})[module] = digest
                else:
                    embedded.report(line)

    def _code_served(self) -> tuple[str, ...]:
        """The user's modules that this process and its children serve, with their digests."""
        living = {os.getpid(), *(child.pid for child in active_children())}
        served = {
            f"{module}@{digest}" for pid, known in dict(self._code).items() if pid in living for module, digest in dict(known).items()
        }
        return tuple(sorted(served)[: registry.MAX_CODE])

    def _finish(self, *_: Any) -> None:
        """Take no step more, and end when those under way are done, however long that takes."""
        self._finishing[0] = 1
        self._is_unhurried = True
        if self._metrics is not None:
            threading.Thread(target=self._metrics.release, name="release port", daemon=True).start()
        os.kill(os.getpid(), signal.SIGTERM)

    def _child_started(self, **_: Any) -> None:
        if self._metrics is not None:
            self._metrics.child_started()
        self._process = None
        self._lock = threading.Lock()
        process = self.process()
        resource_limits.bound()
        shutdown_flush.begin(self.redis_url, process.name, does_steps=True)
        signal.signal(HAND_BACK, lambda *_: process.hand_back())

    def _ready(self, **_: Any) -> None:
        """Begin to serve, or exit with status 1. Celery only logs what a signal handler raises: the worker would run without a sweeper."""
        try:
            self._serve()
        except Exception as error:
            log.exception("worker_not_ready", name=self.name)
            raise SystemExit(1) from error

    def _serve(self) -> None:
        self._is_serving = True
        own = self.name if self.pool == "prefork" else self.process().name
        shutdown_flush.begin(self.redis_url, own, does_steps=self.pool != "prefork")  # children do it for themselves
        self._announce_always()
        ledger = self._ledger()
        pause = SkipListener(ledger.redis).wait if embedded.has_virtual_time() else None
        self._sweeper = Sweeper(self.app, ledger, self.name, pause=pause)
        self._sweeper.start()
        embedded.announce_ready()
        embedded.announce_serving()
        log.info("worker_ready", name=self.name, queues=self.queues, pool=self.pool)

    def _ledger(self) -> Ledger:
        return Ledger(connect(self.redis_url, owner=f"{self.name}:sweep"), patience_s=SWEEP_PATIENCE_S)

    def _announce_always(self) -> None:
        """Say that this worker is there, now and from now on."""
        if not self._is_announced:
            self._is_announced = True
            client = connect(self.redis_url, owner=self.name)
            with _log_outages():
                self._announce(client)
            if abs(clock.off_s()) > registry.CLOCK_OFF_S:
                log.warning("clock_off", name=self.name, seconds=round(clock.off_s()), note="runs are not harmed: time is Redis's own")
            threading.Thread(target=self._keep_announcing, args=(client,), name="announce", daemon=True).start()

    def _announce(self, client: Redis) -> str:
        """Say that this worker is there; answers who else said so under its name, if another did."""
        other = registry.announce(client, self._worker.model_copy(update={"duplicate": self._twin, "code": self._code_served()}))
        if self._is_serving and (file := settings().heartbeat_file):
            file.touch()
        return other

    def _note_twin(self, duplicate: str) -> None:
        """Keep who else has this name: it is one that lives, since it said so after this worker did."""
        if duplicate:
            if not self._twin:
                note = "both count as one: start one of them with another --name"
                log.warning("name_taken", name=self.name, by=duplicate, note=note)
            self._twin, self._twin_seen = duplicate, time.monotonic()
        elif time.monotonic() - self._twin_seen > registry.STALE_S:
            self._twin = ""

    def _keep_announcing(self, client: Redis) -> None:
        while not self._stopping.wait(ANNOUNCE_S):
            with _log_outages():
                self._note_twin(self._announce(client))
            if embedded.stack_is_gone():
                log.warning("stack_gone", name=self.name)
                os._exit(0)
        registry.retire(client, self.name)

    @cached_property
    def _worker(self) -> Worker:
        return Worker(
            name=self.name, queues=self.queues, concurrency=self.concurrency, pid=os.getpid(), host=socket.gethostname(),
            version=cantata.__version__, started_at=time.time(), metrics_url=self._metrics.url if self._metrics else "",
        )  # fmt: skip

    def _going(self, **_: Any) -> None:
        self._stopping.set()
        if self._is_unhurried:
            self._is_unhurried = False  # it may still be told to hurry
            return
        drain = threading.Timer(settings().drain_s, self._hand_back)
        drain.daemon = True
        drain.start()

    def _hand_back(self) -> None:
        """What is not done within the drain time is done by others."""
        log.info("handing_back", name=self.name)
        if self.pool != "prefork":
            self.process().hand_back()
            return
        for child in active_children():
            if child.pid:
                os.kill(child.pid, HAND_BACK)

    def _gone(self, **_: Any) -> None:
        last_words = shutdown_flush.end()
        if self._process is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(mcp.close(), self._process.loop()).result(CLOSE_S)
            self._process.stop()
        last_words.join(CLOSE_S)


@contextmanager
def _log_outages() -> Iterator[None]:
    """Log failures of Redis instead of raising them: a worker that cannot announce itself for a while goes on working."""
    try:
        yield
    except (RedisFailure, OSError) as error:
        outages.tell(log, "announce_failed", error)


def _usual_concurrency(queue: str) -> int:
    return {"agents": THREADS, "coordinator": COORDINATORS}.get(queue, os.cpu_count() or 1)


def serve(queues: tuple[str, ...], *, name: str, concurrency: int | None, metrics_port: int | None = None) -> int:
    """Serve queues of one pool in this process. Raises ConfigError for a name that cannot be one: it stands in leases and keys."""
    try:
        for what, given in (("worker", name), *(("queue", queue) for queue in queues)):
            checked_name(what, given)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    sys.argv[:] = ["cantata-worker"]
    os.environ[IN_WORKER] = "1"
    if generation := embedded.generation():
        name = f"{name}.{generation}"  # the process that it replaces may still finish its steps
    redis_url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    broker_url, shown = os.environ.get("CANTATA_BROKER_URL"), scrape_address(metrics_port)
    return Service(queues, name=name, concurrency=concurrency, redis_url=redis_url, broker_url=broker_url, shown=shown).run()
