"""A worker from start to stop: Celery's signals connected to the state of its processes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import structlog
from billiard.process import active_children
from celery import Celery, signals
from celery._state import set_default_app
from celery.apps import worker as celery_worker
from celery.exceptions import SecurityWarning

import cantata
from cantata.config.user_code.function_names import IN_WORKER
from cantata.engine.dispatch import user_app as user_applications
from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.fleet import holds, load, registry
from cantata.engine.fleet.clock_skip import SkipListener
from cantata.engine.fleet.holds import Holds
from cantata.engine.fleet.registry import Worker, WorkerState
from cantata.engine.publisher import TASKS
from cantata.engine.sweeper import Sweeper
from cantata.errors import ConfigError
from cantata.flows import webhooks
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import availability, clock, outages
from cantata.ledger.redis.connection import Redis, RedisFailure, check, connect, shown
from cantata.operation import json_streams
from cantata.operation.embedded import stack_member
from cantata.operation.embedded.stack_plan import AGENT_THREADS, COORDINATOR_THREADS, TASK_THREADS
from cantata.operation.metrics.scrape_address import ScrapeAddress, scrape_address
from cantata.settings import settings
from cantata.values import checked_name
from cantata_workers.models import llm
from cantata_workers.process import resource_limits, shutdown_flush, tasks, threads, user_code
from cantata_workers.process.consumer import BesideConsumers, Consumer
from cantata_workers.process.duties import sweep_once
from cantata_workers.process.process import Process
from cantata_workers.process.queue_holds import QueueHolds
from cantata_workers.process.readiness import CodeReadiness
from cantata_workers.process.threads import ToolThread
from cantata_workers.tools import mcp
from cantata_workers.tools.celery_tasks import task_results
from cantata_workers.tools.celery_tasks.result_watcher import ResultWatcher

if TYPE_CHECKING:
    from cantata.operation.metrics.worker_metrics import WorkerMetrics

log = structlog.get_logger(__name__)

ANNOUNCE_INTERVAL_S, MAX_ANNOUNCE_INTERVAL_S = 1.0, 2.0  # two announcements may fail before the worker counts as gone
SWEEP_PATIENCE_S = 1.0  # a sweep that waited for Redis to come back would run before owners have renewed
CLOSE_TIMEOUT_S = 3.0  # an MCP server that does not end by itself in 2 s is sent SIGTERM
WAIT_EXTENSION_S = 30.0  # beside the pause: an attempt to reach Redis takes so long at most
HAND_BACK = signal.SIGUSR2  # has a prefork child release its step

DELIVERIES = 16  # messages to webhooks at once in an agents worker, beside its turns: dead hosts occupy these slots, and no others

THREADS = {"agents": AGENT_THREADS, "coordinator": COORDINATOR_THREADS, TASKS: TASK_THREADS, webhooks.QUEUE: DELIVERIES}
"""Queues that get threads. Python functions, and queues of users, get prefork: its children can be killed."""


class WorkerService:
    """One Celery worker with one pool, serving queues."""

    def __init__(
        self,
        queues: tuple[str, ...],
        *,
        name: str,
        concurrency: int | None,
        redis_url: str,
        broker_url: str | None,
        metrics_at: ScrapeAddress | None = None,
    ) -> None:
        """Create the worker. Metrics are served at `metrics_at`, or not at all."""
        self.queues = queues
        self.pool = "threads" if queues[0] in THREADS else "prefork"
        self.concurrency = concurrency or THREADS.get(queues[0], os.cpu_count() or 1)
        self.beside = (
            {webhooks.QUEUE: DELIVERIES}
            if "agents" in queues and webhooks.QUEUE not in queues and self.pool == "threads"
            else {}
        )
        self.name = f"{name}@{socket.gethostname()}"
        self.redis_url = redis_url
        user_app = user_applications.configured()
        if TASKS in queues:
            if user_app is None:
                raise ConfigError(
                    f"the queue {TASKS!r} calls tasks of your Celery application: name it with --app or CANTATA_APP"
                )
            task_results.check(user_app)
        self.app = make_app(redis_url, broker_url, beside=user_app)
        self._watcher: ResultWatcher | None = None
        self.app.conf.worker_consumer = Consumer
        self.app.beside = self.beside
        self.app.steps["consumer"].add(BesideConsumers)
        self.app.conf.worker_max_memory_per_child = resource_limits.recycle_above_kb()
        self._process: Process | None = None
        self._metrics_at = metrics_at
        self._metrics: WorkerMetrics | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._is_announced = False
        self._is_serving = False
        self._sweeper: Sweeper | None = None
        self._readiness = CodeReadiness(queues, corrected=lambda: self._code_faults.clear())
        self._notified = ""
        self._duplicate, self._duplicate_seen_at = "", 0.0
        """Another live worker that announces itself under this worker's name."""
        self._holds = QueueHolds([*queues, *self.beside, *load.USUAL_QUEUES])  # shared with prefork children
        self._asked = Holds()
        """What operators decided about this worker, as last read."""
        self._drained_at = 0.0
        """The monotonic time when it was told to drain; 0 if it serves."""
        self._worker_state: WorkerState = "serving"
        self._celery_worker: Any = None
        self._ignores_drain_time = False
        self._code: dict[int, dict[str, str]] = {}
        self._code_faults: dict[int, dict[str, str]] = {}
        """The digests of the user's modules that each process has read, by process id and module."""
        tasks.register(self.app, self.process)

    def process(self) -> Process:
        """Return the state of this operating system process; each prefork child creates its own."""
        with self._lock:
            if self._process is None:
                is_child = self.pool == "prefork"
                self._process = Process(
                    self.redis_url,
                    self.name,
                    is_child=is_child,
                    send=self.app.send_ready,
                    holds=self._holds,
                    threads=0 if is_child else self.concurrency,
                    is_alone=stack_member.is_in_stack(),
                    tool_thread=ToolThread()
                    if "agents" in self.queues and not is_child and threads.may_call_tools()
                    else None,
                )
            return self._process

    def run(self) -> int:
        """Serve until stopped; return the exit code."""
        if self._metrics_at is not None:
            from cantata.operation.metrics.worker_metrics import WorkerMetrics  # noqa: PLC0415  # it imports prometheus_client, which others need not load

            self._metrics = WorkerMetrics(self._metrics_at, cantata.__version__, tenants=settings().metrics_tenants)
            log.info("metrics_served", name=self.name, url=self._metrics.url)
        client, found = availability.when_available(self._connect, waiting=_tell_systemd_of_wait, name=self.name)
        for warning in found:
            if not stack_member.is_quiet():
                log.warning("redis", warning=warning)
        if stack_member.is_quiet():
            warnings.filterwarnings("ignore", category=SecurityWarning)  # Celery's, of a worker of root
        self._asked = holds.read(client, self.name, pid=os.getpid(), started_at=self._worker.started_at)
        self.app.held = self._to_hold()
        self._holds.set({*self._asked.paused, *self.app.held})
        signal.signal(stack_member.FINISH, self._finish)
        self._serve_code()
        if "agents" in self.queues:
            self._announce_always()
            stack_member.announce_ready()  # LiteLLM takes seconds to load; only steps of agents need to wait for it
            llm.load()
        shutdown_flush.prepare(self.app)
        if json_streams.is_installed():
            celery_worker.safe_say = _say  # type: ignore[attr-defined]  # not in the stubs
        signals.worker_process_init.connect(self._child_started, weak=False)
        signals.worker_ready.connect(self._ready, weak=False)
        signals.worker_shutting_down.connect(self._shutting_down, weak=False)
        signals.worker_shutdown.connect(self._shut_down, weak=False)
        signals.worker_process_shutdown.connect(self._shut_down, weak=False)  # in a prefork child
        worker = self._celery_worker = (
            self.app.Worker(  # not `worker_main`: to read a command line it loads half of `celery.bin`, in 0.2 s
                hostname=self.name,
                queues=list(map(self.app.broker_queue, self.queues)),
                pool=self.pool,
                concurrency=self.concurrency + sum(self.beside.values()),
                loglevel=os.environ.get("CANTATA_LOG_LEVEL", "WARNING"),
                quiet=True,
                without_gossip=True,
                without_mingle=True,
            )
        )
        gc.freeze()  # these objects stay: collecting need not visit them, and children go on sharing their memory
        gc.enable()
        try:
            worker.start()
        finally:
            if self._sweeper is not None:
                self._sweeper.stop()
            if self._metrics is not None:
                self._metrics.close()
        return int(worker.exitcode or 0)

    def _connect(self) -> tuple[Redis, Sequence[str]]:
        """Connect to Redis; return the connections, and warnings about it."""
        client = self.app.dead_letters = connect(self.redis_url)
        warnings_about_it = check(client, url=self.redis_url)
        availability.check_loaded(client, self.redis_url)
        return client, warnings_about_it

    def _serve_code(self) -> None:
        """Serve one version of the user's code, and report which to the stack and the fleet."""
        read, write = os.pipe()  # children inherit its end
        threading.Thread(target=self._collect_code_reports, args=(read,), name="code reports", daemon=True).start()

        def report(line: str) -> None:
            os.write(write, os.fsencode(f"{line}\n"))

        user_code.serve(report, is_replaced=stack_member.is_in_stack())
        if self.queues != ("coordinator",):
            user_code.preload()
            if not stack_member.is_in_stack():  # else `submit` has checked it, and says so at once
                self._readiness.check()
                self._readiness.check_until_ready(self._stopping)

    def _collect_code_reports(self, read: int) -> None:
        """Keep the digests that processes report, and pass their other reports on to the stack's supervisor."""
        with os.fdopen(read, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                try:
                    self._keep_code_report(line)
                except Exception:  # the edge of a thread: without it processes would wait for a pipe that nobody reads
                    log.exception("code_report_not_kept", report=line)

    def _keep_code_report(self, line: str) -> None:
        kind, *fields = line.rstrip("\n").split("\t")
        if kind == "code":
            pid, module, digest = fields
            self._code.setdefault(int(pid), {})[module] = digest
        elif kind == "fault":
            pid, module, why = fields
            self._code_faults.setdefault(int(pid), {})[module] = why
        else:
            stack_member.report(line)

    def _code_served(self) -> tuple[str, ...]:
        """Return the user's modules that this process and its children serve, as `module@digest`."""
        living = {os.getpid(), *(child.pid for child in active_children())}
        served = {
            f"{module}@{digest}"
            for pid, known in dict(self._code).items()
            if pid in living
            for module, digest in dict(known).items()
        }
        return tuple(sorted(served)[: registry.MAX_CODE])

    def _faults_of_code(self) -> dict[str, str]:
        """Return the user's modules that this process or one of its children cannot import, and why."""
        living = {child.pid for child in active_children()}
        known = dict(self._code_faults.get(os.getpid(), {}))
        imported: dict[str, str] = {}
        for pid, found in dict(self._code_faults).items():
            if pid in living:
                imported.update({module: imported.get(module) or why for module, why in dict(found).items()})
        known = {**known, **self._readiness.faults}
        faults = {
            module: why for module, why in {**known, **imported}.items() if why
        }  # a child may import it after it was corrected
        return dict(sorted(faults.items())[: registry.MAX_CODE])

    def _finish(self, *_: Any) -> None:
        """Begin no more steps, and end when the current ones are done, however long that takes."""
        self._holds.finish()
        self._ignores_drain_time = True
        if self._metrics is not None:
            threading.Thread(target=self._metrics.release, name="release port", daemon=True).start()
        os.kill(os.getpid(), signal.SIGTERM)

    def _child_started(self, **_: Any) -> None:
        if self._metrics is not None:
            self._metrics.child_started()
        set_default_app(
            cast(Celery, user_applications.configured())
        )  # or None, in place of ours: Celery's pool has set that
        self._process = None
        self._lock = threading.Lock()
        outages.mark_as_child()
        process = self.process()
        resource_limits.apply_limit()
        shutdown_flush.begin(self.redis_url, process.name, does_steps=True)
        signal.signal(HAND_BACK, lambda *_: process.hand_back())

    def _ready(self, **_: Any) -> None:
        """Serve, or exit with status 1: Celery only logs the errors of signal handlers, and the worker would run without a sweeper."""
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
        ledger = Ledger(connect(self.redis_url, owner=f"{self.name}:sweep"), patience_s=SWEEP_PATIENCE_S)
        pause = SkipListener(ledger.redis).wait if stack_member.has_virtual_time() else None
        if TASKS in self.queues and (user_app := user_applications.activate()):
            self._watcher = tasks.watch_results(self.app, user_app, self.process())
        self._sweeper = Sweeper(self.app, ledger, self.name, sweep_once, pause=pause)
        self._sweeper.start()
        stack_member.announce_ready()
        if sys.stderr.isatty():
            sys.stderr.write(f"submit: worker {self.name} is ready: {', '.join(self.queues)}\n")
        else:
            log.info("worker_ready", name=self.name, queues=self.queues, pool=self.pool)
        stack_member.announce_serving()

    def _announce_always(self) -> None:
        """Announce this worker to the fleet, now and from now on."""
        if not self._is_announced:
            self._is_announced = True
            client = connect(self.redis_url, owner=self.name)
            with self._noting_outages():
                clock.synchronize(client)
                self._announce(client)
            if abs(clock.off_s()) > registry.CLOCK_OFF_S:
                log.warning(
                    "clock_off",
                    name=self.name,
                    seconds=round(clock.off_s()),
                    note="runs are not harmed: time is Redis's own",
                )
            threading.Thread(target=self._keep_announcing, args=(client,), name="announce", daemon=True).start()

    @contextmanager
    def _noting_outages(self) -> Iterator[None]:
        """Log that Redis is away, and when it is back: a worker that cannot announce itself for a while goes on."""
        asked_at = time.monotonic()
        try:
            yield
        except (RedisFailure, OSError) as error:
            outages.failed(error, shown(self.redis_url), name=self.name)
        else:
            outages.answered(asked_at, name=self.name)

    # --- paused queues, and draining ---------------------------------------------------------------------------------

    def _to_hold(self) -> frozenset[str]:
        """Return the queues of its own from which this worker is to take nothing."""
        own = (*self.queues, *self.beside)
        return frozenset(own if self._asked.drain else (queue for queue in own if queue in self._asked.paused))

    def _held(self) -> tuple[str, ...]:
        """Return the queues from which this worker begins nothing: those that it holds, and paused ones of others."""
        own = (*self.queues, *self.beside)
        return tuple(sorted({*self.app.held, *(queue for queue in self._asked.paused if queue not in own)}))

    def _heed(self, client: Redis) -> None:
        """Do as operators decided: hold queues, or serve them again; note how far a drain has come."""
        self._asked = asked = holds.read(client, self.name, pid=os.getpid(), started_at=self._worker.started_at)
        consumer = getattr(self._celery_worker, "consumer", None)
        if consumer is None or not self._is_serving:
            return
        held = self._to_hold()
        consumer.call_soon(consumer.hold, held, partial(self._holds.set, {*asked.paused, *held}))
        if asked.drain is None:
            if self._drained_at:
                log.info("worker_undrained", name=self.name)
            self._drained_at, self._holds.releases, self._worker_state = 0.0, False, "serving"
            return
        if not self._drained_at:
            self._drained_at = time.monotonic()
            log.info("worker_draining", name=self.name, by=asked.drain.by)
        is_drained = consumer.app.held == held and consumer.is_idle
        if is_drained and self._worker_state != "drained":
            log.info("worker_drained", name=self.name, by=asked.drain.by)
        self._worker_state = "drained" if is_drained else "draining"
        if not is_drained and time.monotonic() - self._drained_at >= settings().drain_s:
            self._holds.releases = True
        if is_drained and asked.drain.exits and not self._stopping.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def _announce(self, client: Redis) -> str:
        """Announce this worker once; return the other worker that uses its name, or ''."""
        try:
            self._heed(client)
        except Exception as error:  # noqa: BLE001  # whatever it is: a worker that does not announce itself counts as dead
            outages.warn(log, "decisions_not_heeded", error)
        drain = self._asked.drain
        now = {
            "duplicate": self._duplicate,
            "code": self._code_served(),
            "code_faults": self._faults_of_code(),
            "state": self._worker_state,
            "drained_since": drain and drain.since,
            "drained_by": drain.by if drain else "",
            "held": self._held(),
        }
        other = registry.announce(client, self._worker.model_copy(update=now))
        faults = {} if settings().lenient else self._readiness.faults
        if self._is_serving:
            self._notify_systemd(faults)
            if not faults and (file := settings().heartbeat_file):
                file.touch()
        return other

    def _notify_systemd(self, faults: Mapping[str, str]) -> None:
        """Tell systemd that this worker is ready, or why it is not; outside a unit of `Type=notify` do nothing."""
        state = f"STATUS=not ready: {next(iter(faults.values()))}" if faults else f"READY=1\nSTATUS={self._described()}"
        if state != self._notified:
            stack_member.notify_systemd(state)
            self._notified = state

    def _described(self) -> str:
        if self._worker_state != "serving":
            return f"{self._worker_state}: it takes no work until `submit workers undrain {self.name}`"
        paused = f"; paused: {', '.join(sorted(self.app.held))}" if self.app.held else ""
        return f"ready: {', '.join(self.queues)}{paused}"

    def _note_duplicate_name(self, other: str) -> None:
        """Keep the other worker of this name. It is alive, since it announced itself after this worker did."""
        if other:
            if not self._duplicate:
                note = "both count as one worker; start one of them with another --name"
                log.warning("name_taken", name=self.name, by=other, note=note)
            self._duplicate, self._duplicate_seen_at = other, time.monotonic()
        elif time.monotonic() - self._duplicate_seen_at > registry.STALE_S:
            self._duplicate = ""

    def _keep_announcing(self, client: Redis) -> None:
        while not self._stopping.wait(registry.interval_s(ANNOUNCE_INTERVAL_S, MAX_ANNOUNCE_INTERVAL_S)):
            try:
                with self._noting_outages():
                    self._note_duplicate_name(self._announce(client))
            except Exception:  # the edge of a thread: without it this worker would be taken for dead
                log.exception("not_announced", name=self.name)
            if stack_member.is_stack_gone():
                log.warning("stack_gone", name=self.name)
                os._exit(0)
        with suppress(RedisFailure, OSError):  # Redis is away, and its record expires
            registry.retire(client, self.name)

    @cached_property
    def _worker(self) -> Worker:
        return Worker(
            name=self.name,
            queues=(*self.queues, *self.beside),
            concurrency=self.concurrency,
            beside=self.beside,
            pid=os.getpid(),
            host=socket.gethostname(),
            version=cantata.__version__,
            started_at=time.time(),
            metrics_url=self._metrics.url if self._metrics else "",
            app=settings().app or "",
            event_exchange=self.app.conf.event_exchange,
        )

    def _shutting_down(self, **_: Any) -> None:
        self._stopping.set()
        if self._ignores_drain_time:
            self._ignores_drain_time = False  # a second signal starts the drain time
            return
        drain = threading.Timer(settings().drain_s, self._hand_back)
        drain.daemon = True
        drain.start()

    def _hand_back(self) -> None:
        """Release the steps that were not done within the drain time, so that other workers execute them."""
        log.info("handing_back", name=self.name)
        if self.pool != "prefork":
            self.process().hand_back()
            return
        for child in active_children():
            if child.pid:
                os.kill(child.pid, HAND_BACK)

    def _shut_down(self, **_: Any) -> None:
        flush = shutdown_flush.flush_in_thread()
        if self._watcher is not None:
            self._watcher.stop()
        if self._process is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(mcp.close(), self._process.loop()).result(CLOSE_TIMEOUT_S)
            self._process.stop()
        flush.join(CLOSE_TIMEOUT_S)


def _say(text: str, _stream: object = None) -> None:
    """Write the last words of Celery's worker, which it says in a handler of signals, past `sys.stdout`."""
    json_streams.report(text.strip(), text, {"logger": "celery.worker"})


def _tell_systemd_of_wait(reason: str) -> None:
    """Tell systemd that this worker waits for Redis, and is to be given more time for its start."""
    extension_us = int((availability.MAX_PAUSE_S + WAIT_EXTENSION_S) * 1e6)
    stack_member.notify_systemd(f"STATUS=not ready: {reason}\nEXTEND_TIMEOUT_USEC={extension_us}")


def serve(queues: tuple[str, ...], *, name: str, concurrency: int | None, metrics_port: int | None = None) -> int:
    """Serve queues of one pool in this process; return the exit code. Raises ConfigError for a name that cannot be part of a key."""
    try:
        for kind, given in (("worker", name), *(("queue", queue) for queue in queues)):
            checked_name(kind, given)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    sys.argv[:] = ["cantata-worker"]
    os.environ[IN_WORKER] = "1"
    if generation := stack_member.generation():
        name = f"{name}.{generation}"  # the process that it replaces may still execute its steps
    redis_url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    broker_url, metrics_at = os.environ.get("CANTATA_BROKER_URL"), scrape_address(metrics_port)
    service = WorkerService(
        queues, name=name, concurrency=concurrency, redis_url=redis_url, broker_url=broker_url, metrics_at=metrics_at
    )
    return service.run()
