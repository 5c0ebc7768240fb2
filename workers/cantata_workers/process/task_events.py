"""Celery task events for steps that ran without a message of their own, published many to a message."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from celery import Celery, Task
from celery.events.event import get_exchange
from celery.exceptions import Retry
from celery.utils.time import utcoffset
from kombu.utils.uuid import uuid

from cantata.errors import StepError
from cantata.flows.canvas import shown_args
from cantata.flows.graph import Outcome
from cantata_workers.process.consumer import EVENT_INTERVAL_S

log = structlog.get_logger(__name__)

DROPPED = "dropped"  # an attempt whose lease was lost, or whose run has ended: its outcome is not recorded
WORST_FIRST = ("failed", "retry", "wait")

_pending: list[dict[str, Any]] = []
_lock = threading.Lock()


class AttemptRetried(Retry):
    """Makes Celery report a task as retried."""

    def __repr__(self) -> str:
        return repr(self.exc)  # Celery's event has this with a pool of threads, and `exc` with prefork


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a step, as Flower displays it."""

    kind: str
    step_id: str
    since: float
    until: float
    status: str = DROPPED
    reason: str = ""
    work: str = ""

    def ended(self, outcome: Outcome | None) -> Attempt:
        """Return the attempt with its recorded outcome; unchanged without one."""
        if outcome is None:
            return self
        reason = outcome.error.message if outcome.error else str(outcome.detail.get("reason", ""))
        return replace(self, status=outcome.status, reason=reason)

    @property
    def exception(self) -> Exception | None:
        """The exception that Celery is to report for it; None if it succeeded or was dropped."""
        if self.status not in WORST_FIRST:
            return None
        waits = "waits: " if self.status == "wait" else ""
        error = StepError(f"step {self.step_id!r}: {waits}{self.reason}")
        return error if self.status == "failed" else AttemptRetried(str(error), error)


def own_attempt(steps: Collection[str], attempts: Iterable[Attempt]) -> Attempt | None:
    """Return the attempt that a message's task reports: of its steps the first that failed, was retried or waits, else the first."""
    own = [attempt for attempt in attempts if attempt.step_id in steps]
    return min(own, key=lambda attempt: (*WORST_FIRST, attempt.status).index(attempt.status), default=None)


def publish_ahead_attempts(task: Task[Any, Any], run_id: str, ahead: Sequence[Attempt]) -> None:
    """Publish task events, a moment later, for attempts that the events of their message do not report."""
    app = task.app
    if not ahead or not app.conf.worker_send_task_events or not task.request.id:
        return
    # Who receives the events adds the difference between this offset and that of its own time zone to their times.
    common = {"hostname": task.request.hostname, "pid": os.getpid(), "utcoffset": utcoffset()}
    common["clock"] = app.clock.value  # type: ignore[attr-defined]  # the Lamport clock of an app
    parents = {"root_id": task.request.root_id, "parent_id": task.request.id}
    events: list[dict[str, Any]] = []
    for attempt in ahead:
        identity = {"uuid": uuid(), **common}
        shown = shown_args(run_id, attempt.kind, attempt.work, [attempt.step_id])
        described = {"name": attempt.kind, "args": shown, "kwargs": "", "retries": 0, "eta": None, "expires": None}
        events += [
            {"type": "task-received", "timestamp": attempt.since, **described, **parents, **identity},
            {"type": "task-started", "timestamp": attempt.since, **identity},
            {"timestamp": attempt.until, **_end_of(attempt), **identity},
        ]
    with _lock:
        is_first = not _pending
        _pending.extend(events)
    if is_first:
        timer = threading.Timer(EVENT_INTERVAL_S, _publish, (app,))
        timer.daemon = True
        timer.start()


def _end_of(attempt: Attempt) -> dict[str, Any]:
    error = attempt.exception
    if error is None:
        return {"type": "task-succeeded", "result": "None", "runtime": attempt.until - attempt.since}
    return {
        "type": "task-failed" if attempt.status == "failed" else "task-retried",
        "exception": repr(error),
        "traceback": str(error),
    }


def _publish(app: Celery) -> None:
    with _lock:
        events = _pending.copy()
        _pending.clear()
    try:
        with app.producer_or_acquire() as producer:
            exchange = get_exchange(producer.connection, name=app.conf.event_exchange)
            producer.publish(
                events, exchange=exchange, routing_key="task.multi", serializer="json", declare=[exchange], retry=False
            )
    except Exception as error:  # noqa: BLE001  # the edge of a thread, where each broker has errors of its own: only Flower misses these events
        log.debug("task_events_failed", error=str(error))
