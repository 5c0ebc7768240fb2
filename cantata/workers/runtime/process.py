"""What one worker process holds: its ledger, its leases and the thread that renews them, its event loop, what it knows of costs."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TypeVar

import structlog

from cantata import fault_points
from cantata.coordinator.sweeper import definitions_from
from cantata.errors import CantataError, StepError
from cantata.models.definitions import Definitions
from cantata.models.graph import Outcome, Spec
from cantata.observability import metrics, traces
from cantata.planning.canvas import Pace
from cantata.runs.results import is_over
from cantata.settings import settings
from cantata.state.fleet import registry
from cantata.state.limits import step_costs
from cantata.state.limits.limiter import Limiter
from cantata.state.redis import outages
from cantata.state.redis.connection import RedisFailure, connect
from cantata.state.runs import trace_roots
from cantata.state.runs.ledger import LEASE_S, RENEW_S, Ledger
from cantata.state.runs.records import Begun, Ready
from cantata.workers.runtime import outcomes, shutdown_flush
from cantata.workers.runtime.costs import Costs

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

BATCH_MS = 30.0  # work in one message: long against the cost of a message (0.7 ms), short against a person's patience
MOST_IN_BATCH = 100
MESSAGES_A_SLOT = 2  # so that no slot idles while another still has a long message
TICK_S = 0.1  # how late a time-out may be noticed
MOST_DEFINITIONS = 64  # kept in one process
FLEET_S = 1.0  # how often a process tells and learns what work costs


@dataclass(slots=True)
class Held:
    """A step this process holds the lease of: while its handler runs (`works`), and until its outcome is recorded."""

    begun: Begun
    works: bool = False
    stop: Callable[[], object] | None = None
    give_up: float | None = None
    late: str = ""
    """The error past `give_up`, where it is a part of the work that may take only so long."""
    cancelled: bool = False
    outcome: Outcome | None = None
    """What was recorded for the handler, past its time-out."""


class Process:
    """One worker process. Safe to use from many threads."""

    def __init__(
        self, redis_url: str, name: str, *, is_child: bool = False, lease_s: float = LEASE_S,
        send: Callable[[str, Sequence[Ready]], None] = lambda run_id, ready: None, is_finishing: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Start renewing. `send` sends what a time-out made ready; without it the sweep does. No step begins once it `is_finishing`."""
        self._send = send
        self.is_finishing = is_finishing
        self.name = f"{name}#{os.getpid()}"
        self.is_child = is_child
        self.owner = f"{self.name}~{secrets.token_hex(2)}"  # a container that starts again may have the same names and process ids
        self.ledger = Ledger(connect(redis_url, owner=self.owner, single=is_child), lease_s=lease_s, replicas=settings().wait_replicas)
        self._heart_redis = connect(redis_url, owner=self.owner)
        self._heart_ledger = Ledger(self._heart_redis, lease_s=lease_s)
        self.limiter = Limiter(self.ledger, lease_s=lease_s)
        self._heart_limiter = Limiter(self._heart_ledger, lease_s=lease_s)
        self._leaves: set[str] = set()
        self.costs = Costs()
        self.slots: dict[str, int] = {}
        self._definitions: OrderedDict[str, Definitions] = OrderedDict()
        self._held: dict[str, Held] = {}
        self._changed = threading.Lock()
        self._stopping = threading.Event()
        self._handing_back = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._heart.start()
        self._loop: asyncio.AbstractEventLoop | None = None

    def hand_back(self) -> None:
        """Give back undone what is held; the heart does it within a tick. A prefork child ends with its step."""
        self._handing_back.set()

    def stop(self) -> None:
        """Stop renewing; what is still held runs out and is done elsewhere."""
        self._stopping.set()

    # --- doing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def leased(self, begun: Begun) -> Iterator[Held]:
        """Keep the lease of a step alive until its outcome is recorded."""
        with self._changed:
            held = self._held[begun.lease] = Held(begun)
        try:
            yield held
        finally:
            with self._changed:
                self._held.pop(begun.lease, None)

    @contextmanager
    def working(self, begun: Begun, *, stop: Callable[[], object] | None = None, timeout_s: float | None = None) -> Iterator[Held]:
        """Let the handler of a leased step be stopped: past its time-out, when the lease is lost, or to be handed back."""
        with self._changed:
            held = self._held[begun.lease]
            held.works, held.stop, held.give_up = True, stop, None if timeout_s is None else time.monotonic() + timeout_s
        try:
            yield held
        finally:
            with self._changed:
                held.works, held.give_up = False, None

    @contextmanager
    def within(self, begun: Begun, seconds: float, part: str) -> Iterator[None]:
        """Let a part of a step's work take only so long. Past it the step fails, and a prefork child is killed."""
        with self._changed:
            held = self._held[begun.lease]
            before = held.give_up
            until = time.monotonic() + seconds
            if before is None or until < before:
                held.give_up, held.late = until, f"{part} took longer than {seconds:g} s and was stopped"
        try:
            yield
        finally:
            with self._changed:
                held.give_up, held.late = before, ""

    @property
    def is_draining(self) -> bool:
        """Whether this process was told to give back what it has not done."""
        return self._handing_back.is_set()

    def run_async(self, begun: Begun, work: Coroutine[object, object, Result], timeout_s: float | None) -> Result:
        """Run a coroutine on this process's event loop, under the step's lease and time-out.

        Raises TimeoutError past the time-out, CancelledError if the lease was lost or the run ended.
        """
        loop = self.loop()

        async def bounded() -> Result:
            async with asyncio.timeout(timeout_s):
                return await work

        future = asyncio.run_coroutine_threadsafe(bounded(), loop)
        with self.working(begun, stop=future.cancel):
            return future.result()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The process's one event loop, started at first use."""
        with self._changed:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()
            return self._loop

    def keep_permit(self, lease: str) -> None:
        """Keep what a model call holds of the shared limits, until it is dropped."""
        with self._changed:
            self._leaves.add(lease)

    def drop_permit(self, lease: str) -> None:
        """Keep it no longer."""
        with self._changed:
            self._leaves.discard(lease)

    def send(self, ready: Iterable[tuple[str, Ready]]) -> None:
        """Send steps of any runs, such as those that waited for the shared limits and need not any more."""
        for run_id, step in ready:
            self._send(run_id, (step,))

    def pace(self, definitions: str) -> Pace:
        """Return how this process would batch work of the configuration with this digest."""
        return Pace(partial(self.costs.is_cheap, definitions), partial(self._batch, definitions))

    def _batch(self, definitions: str, spec: Spec, ready: int) -> int:
        cost_ms = max(self.costs.of(definitions, spec.work) or 1.0, 0.05)
        slots = self.slots.get(spec.queue, 1)
        return min(MOST_IN_BATCH, max(1, int(BATCH_MS / cost_ms)), ceil(ready / (slots * MESSAGES_A_SLOT)))

    def definitions(self, run_id: str, digest: str) -> Definitions:
        """Return the definitions that a run started with; runs with the same share them."""
        with self._changed:
            known = self._definitions.get(digest)
        if known is None:
            known = definitions_from(self.ledger.definitions(run_id, digest))
            with self._changed:
                self._definitions[digest] = known
                while len(self._definitions) > MOST_DEFINITIONS:
                    self._definitions.popitem(last=False)
        return known

    # --- the heart --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        renew_at = fleet_at = 0.0
        while not self._stopping.wait(TICK_S if self._held else RENEW_S / 4):
            now = time.monotonic()
            try:
                if self._handing_back.is_set():
                    self._hand_back_all()
                self._stop_late(now)
                if now >= renew_at:
                    renew_at = now + RENEW_S
                    self._renew()
                if now >= fleet_at:
                    fleet_at = now + FLEET_S
                    self._learn()
            except (CantataError, RedisFailure, OSError) as error:
                renew_at = now + TICK_S
                outages.tell(log, "heart_missed", error, worker=self.name)
            except MemoryError:  # a function has it all: a log line takes some, and this thread must live to stop the function
                renew_at = now + TICK_S
            except Exception:  # the edge of a thread: without it every step of this process would be lost
                log.exception("heart_broke", worker=self.name)

    def _renew(self) -> None:
        with self._changed:
            leases, leaves = list(self._held), list(self._leaves)
        if leaves:
            self._heart_limiter.renew(leaves)
        if not leases:
            return
        lost = self._heart_ledger.renew(leases)
        fault_points.at("lease-renewed")
        for held in self._cancelled(lambda held: held.begun.lease in lost):
            log.info("lease_lost", worker=self.name, run=held.begun.run_id, step=held.begun.step_id)
            self._stop_work(held)

    def _hand_back_all(self) -> None:
        for held in self._cancelled(lambda held: True):
            self._heart_ledger.release(held.begun)
            fault_points.at("handed-back")
            log.info("step_handed_back", worker=self.name, run=held.begun.run_id, step=held.begun.step_id)
            self._stop_work(held)

    def _stop_late(self, now: float) -> None:
        for held in self._cancelled(lambda held: held.give_up is not None and held.give_up < now):
            log.info("step_timed_out", worker=self.name, run=held.begun.run_id, step=held.begun.step_id)
            limit = f"{held.begun.spec.timeout_s:g} s" if held.begun.spec.timeout_s else "time"
            late = held.late or f"took longer than its {limit} and was stopped"
            record = outcomes.failed(held.begun, StepError(late, code="timeout", retryable=not held.late))
            try:
                committed = self._heart_ledger.commit(held.begun, record.outcome, output=record.output, info=record.info)
                held.outcome = record.outcome if committed.word in ("ok", "again") else None
                metrics.step_ended(held.begun.spec.kind, record.outcome.status, time.monotonic() - held.begun.asked_at)
                self._send(held.begun.run_id, committed.sends)
                trace_roots.end(traces.active() if is_over(committed.run_status) else None, self._heart_ledger, held.begun.run_id)
            finally:
                self._stop_work(held)

    def _cancelled(self, wanted: Callable[[Held], bool]) -> list[Held]:
        """Mark the steps whose handlers run and which are wanted as cancelled, and return them. One that is done is left to be recorded."""
        with self._changed:
            found = [held for held in self._held.values() if held.works and not held.cancelled and wanted(held)]
            for held in found:
                held.cancelled = True
        return found

    def _stop_work(self, held: Held) -> None:
        with self._changed:
            if not held.works:
                return  # it ended by itself, and its process may be doing another step
            if held.stop is not None:
                held.stop()
            elif self.is_child:
                # A Python function cannot be stopped from outside, its process can; Celery puts another in its place.
                shutdown_flush.before_kill()
                _kill_descendants(os.getpid())
                os.kill(os.getpid(), signal.SIGKILL)

    def _learn(self) -> None:
        self.costs.exchange(partial(step_costs.share, self._heart_redis))
        self.slots = registry.slots(self._heart_redis)  # learns the clock too


def _kill_descendants(pid: int) -> None:
    """Kill what a process started, such as the command of a `proc` step, and what that started. Linux only; elsewhere it is left."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listed.read_text().split()):
                _kill_descendants(child)
                os.kill(child, signal.SIGKILL)
