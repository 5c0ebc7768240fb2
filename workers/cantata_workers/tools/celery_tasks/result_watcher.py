"""Watches the tasks that steps wait for, and records their outcomes.

With a result backend, results are read from it: a Redis backend announces them, others are polled, the less often the older the task is.
Without one, the task itself sends a message when it has ended (`link`, `link_error`). A watcher that dies loses nothing: the sweep has
another one look for the results, and that one goes on watching.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import structlog
from celery import Celery, Signature, states
from celery._state import _set_task_join_will_block  # type: ignore[attr-defined]  # the stubs lack it
from celery.backends.redis import RedisBackend
from celery.backends.rpc import RPCBackend
from kombu import Queue
from kombu.transport import virtual

from cantata.engine.dispatch import user_app
from cantata.engine.dispatch.celery_app import App
from cantata.engine.dispatch.transport import Producers
from cantata.engine.isolation import are_outages, log_once
from cantata.engine.publisher import HEARTBEAT
from cantata.errors import StepError, UnavailableError
from cantata.flows.definitions import Tool
from cantata.ledger.records import AttemptRecord, Begun
from cantata.ledger.redis import outages
from cantata.ledger.redis.connection import RedisFailure
from cantata.values import JsonValue
from cantata_workers.process import outcomes
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.tools.celery_tasks import task_results
from cantata_workers.tools.celery_tasks.task_results import (
    LATE,
    LOST_WORKER,
    TIMEOUT,
    UNREADABLE,
    WORKER_LOST,
    TaskResult,
)
from cantata_workers.tools.celery_tasks.user_workers import UserWorkers

ANNOUNCED_POLL_S = (2.0, 30.0)  # at least and at most until a result that was not announced is looked for
POLL_S = (0.05, 5.0)  # the same where none is announced
POLL_SHARE = 0.25  # of a task's age, until its result is looked for again
DISPATCH_DELAY_S = 0.01  # until a step is recorded as dispatched: most steps in a row of quick tasks never are
MAX_DISPATCHES = 50  # that wait for it; their leases are not renewed
RETRY_S = 0.5  # after the backend or the broker failed
RETRY_WORKERS_S = 30.0  # after the user's workers could not be heard or asked
KEEP_S = 60.0  # past its time limit, before a task is forgotten: another process has ended its step
THREADS = 4  # record outcomes, and execute the cheap steps behind them
MAX_REVOKED = 100  # in one message: a worker's main process asks its result backend about each
UNREADABLE_S = 2.0  # after which a result is believed to be damaged: some backends show it while it is written
MAX_READ = 500  # results in one call of the backend
SUCCEEDED, FAILED = "cantata.task_succeeded", "cantata.task_failed"  # messages of tasks without results
LISTEN_S = 30.0  # for which ends must have been received before a task is called lost with its worker
HEARTBEATS = 3  # a task sends at most so many in `heartbeat_s`

log = structlog.get_logger(__name__)

Resume = Callable[[Begun, AttemptRecord], object]
"""Records the outcome of a step, and executes what follows."""


@dataclass(frozen=True, slots=True)
class TaskCall:
    """An attempt of a step, and the task that it published."""

    begun: Begun
    task: str
    task_id: str
    queue: str | None = None
    """The queue that its tool names; None: its routes decide."""

    @property
    def detail(self) -> dict[str, JsonValue]:
        """The name and id of the task, as they are recorded with the step."""
        return {"task": self.task, "task_id": self.task_id}


@dataclass(slots=True)
class _Watched:
    call: TaskCall
    since: float
    poll_at: float = 0.0


class ResultWatcher:
    """Watches the tasks of the user's application that this process published."""

    def __init__(self, app: App, application: Celery, process: Process, resume: Resume) -> None:
        """Create a watcher; `resume` executes the cheap steps behind a step too."""
        self.user_app = application
        self.producers = Producers(application)
        self._namespace = app.namespace
        self._process = process
        self._resume = resume
        self._has_results = task_results.has_results(application)
        self._is_announced = isinstance(application.backend, RedisBackend)
        self._drop = {"ignore_result": True} if isinstance(application.backend, RPCBackend) else {}
        """Results by `rpc://` would go to a queue of this process that nobody reads, and stay in a Redis for ever."""
        self._poll_s = ANNOUNCED_POLL_S if self._is_announced else POLL_S
        self._replies = application.amqp.queues.new_missing(f"{app.namespace}.replies")
        self._reply_to = _address_of(self._replies, application)
        self._watched: dict[str, _Watched] = {}
        self._unreadable: dict[str, float] = {}
        """Results that could not be read at the first look, and when that was."""
        self._workers = UserWorkers(application, f"{app.namespace}-", lambda: bool(self._watched))
        self._listens_since = math.inf
        """Since when this process receives messages of tasks (monotonic)."""
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, "task results")
        self._dispatcher = ThreadPoolExecutor(1, "dispatcher")
        self._undispatched = threading.BoundedSemaphore(MAX_DISPATCHES)

    def start(self) -> None:
        """Begin to watch."""
        self._start(self._consume_replies)
        self._start(self._hear_workers, RETRY_WORKERS_S, "user_workers_not_heard")
        self._start(self._ask_workers, RETRY_WORKERS_S, "user_workers_not_asked")
        if self._has_results:
            self._start(self._poll)
        if self._is_announced:
            self._start(self._listen)

    def stop(self) -> None:
        """Stop watching, once the outcomes at hand are recorded. Other workers go on."""
        self._ended.set()
        self._dispatcher.shutdown()  # a step that is neither over nor dispatched would be leased until this process is known to be dead
        self._pool.shutdown()

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(self, begun: Begun, tool: Tool | None) -> TaskCall:
        """Return the call of a tool's task by an attempt of a step."""
        begun = replace(begun, inputs={}, given=None)  # many calls wait at once, and their outcomes need neither
        task_id = self.task_id(begun.run_id, begun.attempt, begun.step_id)
        return TaskCall(begun, str(tool.task), task_id, tool.queue) if tool else TaskCall(begun, "", task_id)

    def task_id(self, run_id: str, attempt: int, step_id: str) -> str:
        """Return the id of the task that an attempt of a step calls."""
        return f"{self._namespace}-{run_id}-{attempt}-{sha256(step_id.encode()).hexdigest()[:12]}"

    @contextmanager
    def watching(self, call: TaskCall, *, ignores_result: bool | None) -> Iterator[Mapping[str, object]]:
        """Watch a task that is published in the block, with the options that the context gives; forget it if the block fails.

        `ignores_result` is None if only the user's workers know the task. Then its result is read, and it also reports its end.
        """
        is_read = self._has_results and not ignores_result
        reports_end = not is_read or ignores_result is None
        if is_read:
            self._watch(call)
        try:
            links = {"link": self._message(SUCCEEDED, call), "link_error": self._message(FAILED, call)}
            yield {**(links if reports_end else {}), **self._drop}
        except BaseException:
            self._take(call.task_id)
            raise

    def read(self, task_ids: Sequence[str]) -> dict[str, TaskResult]:
        """Return the results of those tasks that have ended; none without a result backend. Raises UnavailableError."""
        try:
            found = task_results.read(self.user_app, task_ids) if self._has_results else {}
        except Exception as error:  # whatever the user's backend raises while it is away
            raise UnavailableError(f"the results of {user_app.title(self.user_app)} cannot be read: {error}") from error
        return {task_id: result for task_id, result in found.items() if self._is_believed(task_id, result)}

    def _is_believed(self, task_id: str, result: TaskResult) -> bool:
        """Return whether a result is one; of one that cannot be read, only a later look can tell."""
        if result.error_type != UNREADABLE or self._is_announced:
            return True
        if len(self._unreadable) > MAX_READ:
            self._unreadable.clear()  # of tasks that nobody looks at any more
        since = self._unreadable.setdefault(task_id, time.monotonic())
        if time.monotonic() - since < UNREADABLE_S:
            return False
        del self._unreadable[task_id]
        return True

    def revoke(self, task_ids: Sequence[str]) -> None:
        """Have the user's workers discard tasks that they have not begun. A task that runs is not stopped."""
        for start in range(0, len(task_ids), MAX_REVOKED):
            try:
                self.user_app.control.revoke(list(task_ids[start : start + MAX_REVOKED]))
            except Exception as error:  # noqa: BLE001  # the edge to another broker: such a task expires by itself
                log.warning("revoke_failed", tasks=len(task_ids), error=str(error))

    def check(self, tasks: Iterable[str], revoked: Iterable[str]) -> None:
        """Revoke tasks, look for the results of dispatched steps (both `run|attempt|step`), and end those past their time limit."""
        self.revoke(
            [self.task_id(*parts) for each in revoked if (parts := _parts_if_readable(each))]
        )  # first: nothing else has them
        found = [each for each in map(self._readable, tasks) if each]
        lost = self._lost([call for call, _ in found])
        results = self.read([call.task_id for call, _ in found])  # after it: a task may have ended before its worker
        if lost:  # once more: a worker waits for the backend too when a task is revoked, and replies again if that does
            lost = self._lost([call for call, _ in found if call.task_id in lost.keys() - results.keys()])
        for call, age_s in found:
            if result := results.get(call.task_id):
                self._record(call, result, age_s)
            elif why := self._why_silent(call) or lost.get(call.task_id):
                self._take(call.task_id)
                self._record(call, TaskResult(states.FAILURE, error_type=LOST_WORKER, error=why), age_s)
                self.revoke([call.task_id])
            elif age_s >= (limit_s := call.begun.spec.timeout_s or 0.0):
                self._take(call.task_id)
                self._record(call, TaskResult(LATE, error=f"{limit_s:g} s"), age_s)
                self.revoke(
                    [call.task_id]
                )  # not before: the answer of a worker that discards it must not be the outcome
            elif self._has_results:
                self._watch(call, age_s)

    def heartbeat_header(self, call: TaskCall) -> Mapping[str, object]:
        """Return the header by which a task's `cantata.heartbeat()` finds the queue of replies; nothing without `heartbeat_s`."""
        begun = call.begun
        if begun.spec.heartbeat_s is None:
            return {}
        every_s, args = begun.spec.heartbeat_s / HEARTBEATS, [begun.run_id, begun.step_id, begun.attempt]
        return {"cantata_heartbeat": {"to": self._reply_to, "every_s": every_s, "args": args}}

    def _lost(self, calls: Sequence[TaskCall]) -> Mapping[str, str]:
        """Return by id why a task counts as lost with its worker; never one that must be called at most once, for that may be wrong.

        It may be wrong where a worker is cut off from its broker, and works on.
        """
        if calls:
            self._workers.keep_asking()
        if time.monotonic() - self._listens_since < LISTEN_S:
            return {}  # their ends may wait in the queue
        try:
            lost = self._workers.lost([call.task_id for call in calls if not call.begun.spec.at_most_once])
        except Exception as error:  # noqa: BLE001  # whatever the user's broker raises while it is away
            outages.warn(log, "user_workers_not_asked", error)
            return {}
        return {
            task_id: f"its worker {name} sends no heartbeats, and no worker that replies knows the task"
            for task_id, name in lost.items()
        }

    def _why_silent(self, call: TaskCall) -> str:
        """Return why a task that called `cantata.heartbeat()` counts as lost; empty if it has called it in time.

        A process that has not received messages itself for as long knows nothing: heartbeats may wait in the queue.
        """
        limit_s = call.begun.spec.heartbeat_s
        if limit_s is None or time.monotonic() - self._listens_since < limit_s:
            return ""
        try:
            silent_s = self._process.ledger.steps.silent_s(call.begun)
        except Exception as error:
            if are_outages(error):
                raise
            log_once(
                "heartbeat_unreadable", error, item=call.task_id
            )  # one that cannot be read is in the way of no other task
            return ""
        is_silent = silent_s is not None and silent_s > limit_s
        return f"it called cantata.heartbeat() last more than {limit_s:g} s ago (heartbeat_s)" if is_silent else ""

    def _readable(self, name: str) -> tuple[TaskCall, float] | None:
        """Return the same as `_dispatched`; None, too, for a step that cannot be read, so that it is in the way of no other."""
        try:
            return self._dispatched(name)
        except Exception as error:
            if are_outages(error):
                raise
            log_once("task_unreadable", error, item=name)
            return None

    def _dispatched(self, name: str) -> tuple[TaskCall, float] | None:
        """Return the call of a dispatched step (`run|attempt|step`) and its age in seconds; None if it is over."""
        run_id, attempt, step_id = _parts(name)
        found = self._process.ledger.steps.dispatched(run_id, step_id, attempt)
        if found is None:
            return None
        begun, age_s = found
        return self.call(begun, StepContext(begun, self._process).tool), age_s

    # --- results ----------------------------------------------------------------------------------------------------

    def _watch(self, call: TaskCall, age_s: float = 0.0) -> None:
        self._watched.setdefault(call.task_id, _Watched(call, time.monotonic() - age_s))

    def _take(self, task_id: str) -> _Watched | None:
        """Stop watching a task; return it if it was watched."""
        return self._watched.pop(task_id, None)

    def _found(self, results: Mapping[str, TaskResult]) -> None:
        """Record the results of tasks that are watched."""
        for task_id, result in results.items():
            if watched := self._take(task_id):
                self._pool.submit(self._record, watched.call, result, time.monotonic() - watched.since)

    def _record(self, call: TaskCall, result: TaskResult, age_s: float) -> bool:
        """Record the result of a task as the outcome of its step; return False if that failed."""
        try:
            self._commit(call, result, age_s)
        except Exception as error:  # noqa: BLE001  # the edge of a thread: the sweep has the result looked for again
            outages.warn(log, "task_result_not_recorded", error, run=call.begun.run_id, step=call.begun.step_id)
            return False
        return True

    def _commit(self, call: TaskCall, result: TaskResult, age_s: float) -> None:
        begun, definitions = call.begun, self._process.definitions(call.begun.run_id, call.begun.definitions)
        is_found = result.state not in (LATE, states.REVOKED)
        queue = "" if is_found else user_app.queue_of(self.user_app, call.task, call.queue)
        try:
            outcome = result.outcome(call.task, self.user_app.tasks, queue).model_copy(update={"detail": call.detail})
            limit_bytes, source = definitions.limits.output_bytes, f"task {call.task}"
            record = outcomes.record_of(begun, outcome, limit_bytes=limit_bytes, took_ms=age_s * 1000, source=source)
        except StepError as error:
            if error.code in (
                WORKER_LOST,
                TIMEOUT,
            ):  # a late task may have been lost with its worker: both are as if a worker of ours died
                if begun.spec.at_most_once:
                    self._process.ledger.steps.release(begun)  # to a person, since the task may have had its effect
                    return
                retries = max(begun.spec.retries, definitions.defaults.max_attempts - 1)
                begun = replace(begun, spec=begun.spec.model_copy(update={"retries": retries}))
            record = outcomes.failure_record(begun, error, took_ms=age_s * 1000)
            record = replace(record, info={**record.info, **call.detail})
        self._resume(begun, record)

    # --- dispatched steps -------------------------------------------------------------------------------------------

    def dispatch_later(self, begun: Begun, record: AttemptRecord) -> bool:
        """Record a step as dispatched in a moment, unless its task has ended by then; return False if it must be recorded now."""
        watched = self._watched.get(str(record.info["task_id"]))
        if (
            watched is None
            or begun.spec.at_most_once
            or self._ended.is_set()
            or not self._undispatched.acquire(blocking=False)
        ):
            return False
        self._dispatcher.submit(self._record_dispatch, watched.call, record, time.monotonic() + DISPATCH_DELAY_S)
        return True

    def _record_dispatch(self, call: TaskCall, record: AttemptRecord, due_at: float) -> None:
        """Record a step as dispatched if its task takes longer. If its run is over by then, the task is revoked."""
        try:
            time.sleep(max(0.0, due_at - time.monotonic()))
            if call.task_id in self._watched:
                committed = self._process.ledger.steps.commit(
                    call.begun, record.outcome, output=record.output, info=record.info
                )
                if committed.result == "closed":
                    self.revoke([call.task_id])
        except Exception as error:  # noqa: BLE001  # the edge of a thread: the step counts as lost, and its next attempt looks for the result
            outages.warn(log, "dispatch_not_recorded", error, run=call.begun.run_id, step=call.begun.step_id)
        finally:
            self._undispatched.release()

    # --- threads ----------------------------------------------------------------------------------------------------

    def _start(
        self, loop: Callable[[], None], retry_s: float = RETRY_S, warning: str = "task_results_unavailable"
    ) -> None:
        """Run a loop in a thread until the watcher ends, again after it failed."""

        def repeat() -> None:
            while not self._ended.is_set():
                try:
                    loop()
                except Exception as error:  # noqa: BLE001  # whatever the user's backend or broker raises while it is away
                    if not self._ended.wait(retry_s):
                        outages.warn(log, warning, error)

        threading.Thread(target=repeat, name=loop.__name__.strip("_"), daemon=True).start()

    def _hear_workers(self) -> None:
        self._workers.listen(self._ended)

    def _ask_workers(self) -> None:
        self._workers.ask(self._ended)

    def _listen(self) -> None:
        """Record the results that a Redis backend announces."""
        receive = task_results.subscribe(self.user_app, f"{self._namespace}-*")
        self._found(self.read([*self._watched]))  # they may have ended while nobody listened
        while not self._ended.is_set():
            self._found(receive())

    def _poll(self) -> None:
        """Look for results, of each task the less often the older it is."""
        least_s, most_s = self._poll_s
        while not self._ended.wait(least_s):
            now = time.monotonic()
            due = [each for each in list(self._watched.values()) if each.poll_at <= now]
            for each in due:
                each.poll_at = now + min(max((now - each.since) * POLL_SHARE, least_s), most_s)
                if now - each.since > (each.call.begun.spec.timeout_s or 0.0) + KEEP_S:
                    self._take(each.call.task_id)
            for start in range(0, len(due), MAX_READ):
                self._found(self.read([each.call.task_id for each in due[start : start + MAX_READ]]))

    def _message(self, name: str, call: TaskCall) -> Signature[Any]:
        """Return the message by which a task reports its end. Its worker must not declare the queue, since it would then consume it."""
        options = {**self._reply_to, "serializer": "json", "ignore_result": True}
        args = (call.begun.run_id, call.begun.step_id, call.begun.attempt)
        return self.user_app.signature(name, args=args, options=options)

    def _consume_replies(self) -> None:
        """Record the ends that tasks without results report."""
        with self.user_app.connection_for_read() as connection:
            replies = self._replies(connection.default_channel)
            replies.declare()
            with connection.Consumer([replies], on_message=self._reply, accept=["json"], prefetch_count=THREADS):
                self._listens_since = time.monotonic()
                try:
                    while not self._ended.is_set():
                        try:
                            connection.drain_events(timeout=1.0)
                        except TimeoutError:
                            connection.heartbeat_check()
                finally:
                    self._listens_since = math.inf

    def _reply(self, message: Any) -> None:
        if message.headers.get("task") == HEARTBEAT:
            self._note_heartbeat(message)
            return
        try:
            (first, run_id, step_id, attempt), is_success = message.payload[0], message.headers["task"] == SUCCEEDED
            found = self._dispatched(f"{run_id}|{attempt}|{step_id}")
        except (UnavailableError, RedisFailure):
            raise  # it comes again
        except Exception as fault:  # noqa: BLE001  # anyone may send anything
            log.warning("reply_unreadable", queue=self._replies.name, error=f"{type(fault).__name__}: {fault}")
            message.reject()
            return
        error = f"see the log of its worker: without a result backend Celery sends no error (task id {first})"
        result = (
            TaskResult(states.SUCCESS, first)
            if is_success
            else TaskResult(states.FAILURE, error_type="an exception", error=error)
        )
        if found is not None:
            call, age_s = found
            self._take(call.task_id)
            if not self._record(
                call, self.read([call.task_id]).get(call.task_id, result), age_s
            ):  # a stored error has its text
                self._ended.wait(RETRY_S)
                message.requeue()
                return
        message.ack()

    def _note_heartbeat(self, message: Any) -> None:
        """Record a heartbeat of a dispatched step; one that is lost here is followed by another."""
        try:
            run_id, step_id, attempt = message.payload[0]
            found = self._dispatched(f"{run_id}|{int(attempt)}|{step_id}")
            if found is not None and found[0].begun.spec.heartbeat_s is not None:
                self._process.ledger.steps.record_heartbeat(found[0].begun)
        except (UnavailableError, RedisFailure):
            raise  # it comes again
        except Exception as fault:  # noqa: BLE001  # anyone may send anything
            log.warning("reply_unreadable", queue=self._replies.name, error=f"{type(fault).__name__}: {fault}")
        message.ack()


def _address_of(queue: Queue, app: Celery) -> Mapping[str, str]:
    """Return the options with which the user's workers, which do not know a queue, send a message to it.

    A broker such as SQS has no exchanges: kombu remembers in each process which queues are bound to one. There the message names the queue
    itself, by the exchange without a name; of type `direct`, Celery would take the default queue instead.
    """
    channel: Any = getattr(app.connection_for_write().get_transport_cls(), "Channel", object)
    if issubclass(channel, virtual.Channel) and channel.get_table is virtual.Channel.get_table:
        return {"exchange": "", "exchange_type": "topic", "routing_key": queue.name}
    return {"exchange": queue.exchange.name, "routing_key": queue.routing_key}


def _parts(name: str) -> tuple[str, int, str]:
    run_id, attempt, step_id = name.split("|", 2)
    return run_id, int(attempt), step_id


def _parts_if_readable(name: str) -> tuple[str, int, str] | None:
    try:
        return _parts(name)
    except ValueError as error:
        log_once("task_unreadable", error, item=name)
        return None


_current: ResultWatcher | None = None


def serve(watcher: ResultWatcher) -> None:
    """Start the watcher of this process."""
    global _current
    _current = watcher
    _set_task_join_will_block(
        True
    )  # as Celery's own pools do: then a call subscribes to no result, which nobody here awaits
    watcher.start()


def current() -> ResultWatcher:
    """Return the watcher of this process. Raises StepError if it does not serve the queue of tasks."""
    if _current is None:
        message = "this process calls no tasks of your Celery application: in a run inside a test, give a function in the task's place"
        raise StepError(message, code="task_worker")
    return _current
