"""The state of one worker process: its ledger, leases and their renewal, event loop, and measured costs."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TypeVar

import structlog

from cantata.engine.fleet import registry
from cantata.engine.limits import step_costs
from cantata.engine.limits.limiter import Limiter, read_pauses
from cantata.engine.limits.step_costs import Costs
from cantata.engine.start import definitions_from
from cantata.errors import CantataError, StepError
from cantata.flows.canvas import BatchPolicy
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Outcome, Spec
from cantata.ledger.intervals import LEASE_S, RENEW_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import AttemptRecord, Begun, Committed, Ready
from cantata.ledger.redis import outages
from cantata.ledger.redis.connection import RedisFailure, connect
from cantata.ledger.runs import run_ends
from cantata.ledger.runs.results import is_over
from cantata.operation import exits, fault_points, metrics, traces
from cantata.settings import settings
from cantata_workers.process import outcomes, shutdown_flush
from cantata_workers.process.pauses import Pauses
from cantata_workers.process.queue_holds import QueueHolds
from cantata_workers.process.recent_outcomes import RecentOutcomes
from cantata_workers.process.threads import MessageThreads, ToolThread

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

BATCH_MS = 30.0  # work in one message: long against the cost of a message (0.7 ms), short against a person's patience
MAX_BATCH_STEPS = 100
MESSAGES_PER_SLOT = 2  # so that no slot idles while another still has a long message
TICK_S = 0.1  # how late a time-out may be noticed
INTERRUPT_AGAIN_S = 1.0  # for what a function does in `finally`
MAX_CACHED_DEFINITIONS = 64
IMPORT_LIMIT_S = 600.0  # of an import in a step: one that hangs must end some time
EXCHANGE_INTERVAL_S = 1.0  # between exchanges of measured costs with the fleet


@dataclass(slots=True)
class LeasedStep:
    """A step that this process holds the lease of, until its outcome is recorded."""

    begun: Begun
    is_running: bool = False
    """Its handler runs."""
    cancel: Callable[[], object] | None = None
    """Cancels its handler; None for a Python function, which only ends with its process, unless it can be interrupted."""
    interrupt: Callable[[], None] | None = None
    """Ends its handler by an exception, where that is executed in a thread of the user's process."""
    interrupted_at: float = 0.0
    """The monotonic time of that."""
    deadline: float | None = None
    """The monotonic time at which its handler is stopped."""
    part_error: str = ""
    """The error past `deadline`, if that bounds only a part of the step."""
    watch: Callable[[], str] | None = None
    """Returns an error for which its handler is stopped at once; empty if there is none."""
    is_cancelled: bool = False
    outcome: Outcome | None = None
    """The outcome that was recorded for the handler when it timed out."""
    behind: tuple[Begun, AttemptRecord] | None = None
    """The ended step, with its record, with which this one is to be recorded; this one has no lease of its own."""


_executed: ContextVar[LeasedStep | None] = ContextVar("executed_step", default=None)
"""The step whose handler runs here, if it can be stopped."""


@contextmanager
def uncounted_import(name: str) -> Iterator[None]:
    """Let the time of an import not count in the time-outs of the step that needs it: another process may have imported it before."""
    step = _executed.get()
    if step is None or step.deadline is None:
        yield
        return
    since, deadline, part_error = time.monotonic(), step.deadline, step.part_error
    step.deadline, step.part_error = (
        since + IMPORT_LIMIT_S,
        f"importing {name!r} took longer than {IMPORT_LIMIT_S:g} s and was stopped",
    )
    try:
        yield
    finally:
        step.part_error, step.deadline = part_error, deadline + time.monotonic() - since


class StepStoppedError(Exception):
    """A step was stopped: its lease was lost, its run has ended, it timed out, or its process drains."""


class Process:
    """One worker process: its ledger, leases, event loop and measured costs. Safe to use from many threads.

    A thread of its own renews its leases and permits, stops handlers past their deadlines, and exchanges costs with the fleet.
    """

    def __init__(
        self,
        redis_url: str,
        name: str,
        *,
        is_child: bool = False,
        lease_s: float = LEASE_S,
        send: Callable[[Iterable[tuple[str, Ready]]], object] = list,
        holds: QueueHolds | None = None,
        threads: int = 0,
        tool_thread: ToolThread | None = None,
        is_alone: bool = False,
        interrupts: bool = False,
    ) -> None:
        """Start the renewal thread.

        Args:
            is_child: This is a prefork child: a Python function is stopped by killing this process.
            send: Dispatches steps of any runs that a time-out or a permit made ready; without it the sweep does.
            holds: The queues of which no step may begin here; none if absent.
            threads: The number of messages that it executes at once; 0 for a prefork child.
            tool_thread: The thread in which it calls quick functions for its models, if it does.
            is_alone: Whether all workers have the files of this one, so that a step whose code it cannot import fails.
            interrupts: This is a process of the user's, inside a test: a Python function is stopped by an exception in its thread.
        """
        self.send = send
        self.holds = holds or QueueHolds()
        self.tool_thread = tool_thread
        self.threads = MessageThreads(threads)
        self.name = f"{name}#{os.getpid()}"
        self.is_child, self.is_alone, self._interrupts = is_child, is_alone, interrupts
        self.owner = f"{self.name}~{secrets.token_hex(2)}"  # a container that starts again may have the same names and process ids
        self.ledger = Ledger(
            connect(redis_url, owner=self.owner, single=is_child), lease_s=lease_s, replicas=settings().wait_replicas
        )
        self.limiter = Limiter(self.ledger, lease_s=lease_s)
        self.pauses = Pauses(self.limiter)
        self.costs = Costs()
        self.recent_outcomes = RecentOutcomes(self.ledger.reader)
        self.slots: dict[str, int] = {}
        self._definitions: OrderedDict[str, Definitions] = OrderedDict()
        self._leased: dict[str, LeasedStep] = {}
        self._permits: set[str] = set()
        self._messages: dict[Callable[[], object], str] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._handing_back = threading.Event()
        self._renewal_redis = connect(redis_url, owner=self.owner)  # a connection that no handler can keep busy
        self._renewal_ledger = Ledger(self._renewal_redis, lease_s=lease_s)
        self._renewal_limiter = Limiter(self._renewal_ledger, lease_s=lease_s)
        threading.Thread(target=self._renew_until_stopped, name="lease renewal", daemon=True).start()

    def hand_back(self) -> None:
        """Release the steps whose handlers run, within a tick. A prefork child ends with its step."""
        self._handing_back.set()

    @property
    def is_draining(self) -> bool:
        """Return whether this process has been asked to release its unfinished steps."""
        return self._handing_back.is_set() or self.holds.releases

    @contextmanager
    def executing(self, queue: str, give_back: Callable[[], object]) -> Iterator[None]:
        """Call `give_back` if the queue is held while the block lasts, in another thread and several times."""
        self._messages[give_back] = queue
        try:
            yield
        finally:
            self._messages.pop(give_back, None)

    def stop(self) -> None:
        """Stop renewing: leases that are left expire, and other workers execute their steps."""
        self._stopping.set()

    # --- leases and permits -----------------------------------------------------------------------------------------

    @contextmanager
    def leased(self, begun: Begun, *, behind: tuple[Begun, AttemptRecord] | None = None) -> Iterator[LeasedStep]:
        """Renew the lease of a step while the block lasts: until its outcome is recorded.

        A step that is executed before the one in front of it is recorded (`behind`) has no lease yet. If it has to be stopped, that is.
        """
        with self._lock:
            step = self._leased[begun.lease] = LeasedStep(begun, behind=behind)
        try:
            yield step
        finally:
            with self._lock:
                self._leased.pop(begun.lease, None)

    @contextmanager
    def running(
        self, begun: Begun, *, cancel: Callable[[], object] | None = None, timeout_s: float | None = None
    ) -> Iterator[LeasedStep]:
        """Let the handler of a leased step be stopped: past its time-out, when the lease is lost, or to release the step."""
        with self._lock:
            step = self._leased[begun.lease]
            step.is_running, step.cancel = True, cancel
            step.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        token = _executed.set(step)
        try:
            with ExitStack() as stack:
                if self._interrupts and cancel is None:
                    step.interrupt = stack.enter_context(exits.interruptible())
                yield step
        finally:
            _executed.reset(token)
            with self._lock:
                step.is_running, step.deadline = False, None

    @contextmanager
    def time_limit(self, begun: Begun, seconds: float, part: str) -> Iterator[None]:
        """Bound the time of a part of a step. Past it the step fails, and a prefork child is killed."""
        with self._lock:
            step = self._leased[begun.lease]
            step_deadline = step.deadline
            part_deadline = time.monotonic() + seconds
            if step_deadline is None or part_deadline < step_deadline:
                step.deadline, step.part_error = part_deadline, f"{part} took longer than {seconds:g} s and was stopped"
        try:
            yield
        finally:
            with self._lock:
                step.deadline, step.part_error = step_deadline, ""

    @contextmanager
    def watched(self, begun: Begun, watch: Callable[[], str]) -> Iterator[None]:
        """Let a part of a step fail with the error that `watch` returns, and kill a prefork child then. It is called often."""
        with self._lock:
            step = self._leased[begun.lease]
            step.watch = watch
        try:
            yield
        finally:
            with self._lock:
                step.watch = None

    def keep_permit(self, lease: str) -> None:
        """Renew the permit that a model call holds under this lease, until it is dropped."""
        with self._lock:
            self._permits.add(lease)

    def drop_permit(self, lease: str) -> None:
        """Stop renewing a permit."""
        with self._lock:
            self._permits.discard(lease)

    # --- coroutines -------------------------------------------------------------------------------------------------

    def run_async(self, begun: Begun, coroutine: Coroutine[object, object, Result], timeout_s: float | None) -> Result:
        """Run a coroutine on this process's event loop, under the step's lease and time-out.

        Raises TimeoutError past the time-out, StepStoppedError if the step was stopped meanwhile, asyncio.CancelledError if the coroutine
        was cancelled by its own code.
        """

        async def bounded() -> Result:
            async with asyncio.timeout(timeout_s):
                return await coroutine

        future = asyncio.run_coroutine_threadsafe(bounded(), self.loop())
        with self.running(begun, cancel=future.cancel) as step:
            if step.is_cancelled:  # before it could be
                future.cancel()
            try:
                return exits.result_of(future)
            except CancelledError:
                if step.is_cancelled:
                    raise StepStoppedError from None
                if future.cancelled():
                    raise asyncio.CancelledError from None
                raise

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the process's one event loop, started at first use."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_forever, args=(self._loop,), name="loop", daemon=True).start()
            return self._loop

    # --- batches and definitions ------------------------------------------------------------------------------------

    def batch_policy(self, definitions: str) -> BatchPolicy:
        """Return how this process batches steps of the configuration with this digest."""
        return BatchPolicy(partial(self.costs.is_cheap, definitions), partial(self._batch_size, definitions))

    def _batch_size(self, definitions: str, spec: Spec, ready: int) -> int:
        cost_ms = max(self.costs.of(definitions, spec.work) or 1.0, 0.05)
        slots = self.slots.get(spec.queue, 1)
        return min(MAX_BATCH_STEPS, max(1, int(BATCH_MS / cost_ms)), ceil(ready / (slots * MESSAGES_PER_SLOT)))

    def definitions(self, run_id: str, digest: str) -> Definitions:
        """Return the definitions that a run started with, from a cache by their digest."""
        with self._lock:
            known = self._definitions.get(digest)
        if known is None:
            known = definitions_from(self.ledger.runs.definitions(run_id, digest))
            with self._lock:
                self._definitions[digest] = known
                while len(self._definitions) > MAX_CACHED_DEFINITIONS:
                    self._definitions.popitem(last=False)
        return known

    # --- the renewal thread -----------------------------------------------------------------------------------------

    def _renew_until_stopped(self) -> None:
        renew_at = exchange_at = 0.0
        while not self._stopping.wait(TICK_S if self._leased else RENEW_S / 4):
            now = time.monotonic()
            try:
                self._give_back_held()
                if self.is_draining:
                    self._release_running()
                self._time_out_steps(now)
                self._interrupt_again(now)
                if now >= renew_at:
                    renew_at = now + RENEW_S
                    self._renew()
                if now >= exchange_at:
                    exchange_at = now + registry.interval_s(EXCHANGE_INTERVAL_S)
                    self._exchange_costs()
                    self.pauses.refresh(partial(read_pauses, self._renewal_redis))
            except (CantataError, RedisFailure, OSError) as error:
                renew_at = now + TICK_S
                if not self._stopping.is_set():
                    outages.warn(log, "lease_renewal_failed", error, worker=self.name)
            except (
                MemoryError
            ):  # a function has it all: a log line takes some, and this thread must live to stop the function
                renew_at = now + TICK_S
            except Exception:  # the edge of a thread: without it every step of this process would be lost
                log.exception("lease_renewal_crashed", worker=self.name)

    def _renew(self) -> None:
        """Renew leases and permits; cancel the handlers of steps whose lease is lost."""
        with self._lock:
            leases, permits = [name for name, step in self._leased.items() if not step.behind], list(self._permits)
        if permits:
            self._renewal_limiter.renew(permits)
        if not leases:
            return
        lost = self._renewal_ledger.leases.renew(leases)
        fault_points.at("lease-renewed")
        for step in self._mark_cancelled(lambda step: step.begun.lease in lost):
            log.info("lease_lost", worker=self.name, run=step.begun.run_id, step=step.begun.step_id)
            self._stop_handler(step)

    def _give_back_held(self) -> None:
        for give_back, queue in list(self._messages.items()):
            if self.holds.has(queue):
                give_back()

    def _release_running(self) -> None:
        """Release the steps whose handlers run, so that other workers execute them at once."""
        for step in self._mark_cancelled(lambda step: True):
            if step.behind:
                self.record(*step.behind)
            else:
                self._renewal_ledger.steps.release(step.begun)
            fault_points.at("step-released")
            log.info("step_released", worker=self.name, run=step.begun.run_id, step=step.begun.step_id)
            self._stop_handler(step)

    def _time_out_steps(self, now: float) -> None:
        """Record the failure of steps past their deadline, and stop their handlers."""
        for step in self._mark_cancelled(partial(_is_late, now=now)):
            begun = step.begun
            log.info("step_timed_out", worker=self.name, run=begun.run_id, step=begun.step_id)
            error = StepError(step.part_error, code="timeout") if step.part_error else outcomes.timed_out(begun)
            begun, record = step.behind or (
                begun,
                outcomes.failure_record(begun, error),
            )  # it is stopped again where it has a lease
            try:
                step.outcome = record.outcome if self.record(begun, record).result in ("ok", "again") else None
            except Exception:
                if step.behind:  # to kill this process would lose an outcome: it is tried again
                    step.is_cancelled = False
                raise
            finally:
                if step.is_cancelled:
                    self._stop_handler(step)

    def _interrupt_again(self, now: float) -> None:
        """Interrupt functions that went on: they caught the exception, or Python could not raise it where they were."""
        with self._lock:
            late = [
                step
                for step in self._leased.values()
                if step.interrupt and 0 < step.interrupted_at < now - INTERRUPT_AGAIN_S
            ]
        for step in late:
            self._stop_handler(step)

    def record(self, begun: Begun, record: AttemptRecord) -> Committed:
        """Record the outcome of a step in place of the thread that executed it."""
        committed = self._renewal_ledger.steps.commit(begun, record.outcome, output=record.output, info=record.info)
        spec = begun.spec
        metrics.record_step_ended(spec.kind, spec.work, record.outcome.status, time.monotonic() - begun.asked_at)
        self.send((begun.run_id, step) for step in committed.sends)
        if is_over(committed.run_status):
            run_ends.record(self._renewal_ledger, begun.run_id, traces.active())
        return committed

    def _mark_cancelled(self, is_wanted: Callable[[LeasedStep], bool]) -> list[LeasedStep]:
        """Mark the wanted steps whose handlers run as cancelled, and return them. One whose handler has ended is left to be recorded."""
        with self._lock:
            found = [
                step for step in self._leased.values() if step.is_running and not step.is_cancelled and is_wanted(step)
            ]
            for step in found:
                step.is_cancelled = True
        return found

    def _stop_handler(self, step: LeasedStep) -> None:
        with self._lock:
            if not step.is_running:
                return  # it ended by itself, and its process may execute another step
            if step.cancel is not None:
                step.cancel()
            elif step.interrupt is not None:
                step.interrupt()
                step.interrupted_at = time.monotonic()
            elif self.is_child:
                # A Python function cannot be stopped from outside, its process can; Celery replaces it.
                for other in self._leased.values():
                    if other.begun.spec.pure and not other.is_running:  # begun together with the one that is stopped
                        with suppress(CantataError, RedisFailure):
                            self._renewal_ledger.steps.release(other.begun)
                shutdown_flush.flush_before_kill()
                kill_descendants(os.getpid())
                os.kill(os.getpid(), signal.SIGKILL)

    def _exchange_costs(self) -> None:
        self.costs.exchange(partial(step_costs.share, self._renewal_redis))
        self.slots = registry.published_slots(self._renewal_redis)


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop. asyncio ends a loop with KeyboardInterrupt or SystemExit of any task; the tasks of other steps go on here."""
    while True:
        try:
            loop.run_forever()
            return
        except (KeyboardInterrupt, SystemExit) as error:  # who awaits the task gets it too
            log.warning("task_exited", error=f"{type(error).__name__}: {error}")


def _is_late(step: LeasedStep, *, now: float) -> bool:
    """Return whether a step is past its deadline, or its watch has an error, which is kept."""
    if step.watch is not None and (error := step.watch()):
        step.part_error = error
        return True
    return step.deadline is not None and step.deadline < now


def kill_descendants(pid: int) -> None:
    """Kill the processes that a process started, such as the command of a `proc` step, and theirs. Linux only; elsewhere they are left."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listed.read_text().split()):
                kill_descendants(child)
                os.kill(child, signal.SIGKILL)
