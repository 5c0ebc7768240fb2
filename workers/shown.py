"""Shows steps that ran without a message of their own: task events, as Celery would send them, many to a message."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from typing import Any

import structlog
from celery import Celery, Task
from celery.events.event import get_exchange
from kombu.utils.uuid import uuid

from workers.consumer import EVENTS_S

log = structlog.get_logger(__name__)

_waiting: list[dict[str, Any]] = []
_changing = threading.Lock()


def steps_run_ahead(task: Task[Any, Any], run_id: str, steps: Collection[str], done: Sequence[tuple[str, str, float, float]]) -> None:
    """Tell Flower, in a moment, of the steps in `done` (kind, step, from, to) beyond the first of the message, which has its own events."""
    app = task.app
    first = next(iter(steps), "")
    ahead = [row for row in done if row[1] != first]
    if not ahead or not app.conf.worker_send_task_events or not task.request.id:
        return
    common = {"hostname": task.request.hostname, "pid": os.getpid(), "utcoffset": 0, "clock": app.clock.value}  # type: ignore[attr-defined]  # the Lamport clock of an app
    parents = {"root_id": task.request.root_id, "parent_id": task.request.id}
    events: list[dict[str, Any]] = []
    for kind, step_id, since, until in ahead:
        identity = {"uuid": uuid(), **common}
        described = {"name": kind, "args": f"{run_id}:{step_id}", "kwargs": "", "retries": 0, "eta": None, "expires": None, **parents}
        events += [
            {"type": "task-received", "timestamp": since, **described, **identity},
            {"type": "task-started", "timestamp": since, **identity},
            {"type": "task-succeeded", "timestamp": until, "result": "None", "runtime": until - since, **identity},
        ]
    with _changing:
        is_first = not _waiting
        _waiting.extend(events)
    if is_first:
        timer = threading.Timer(EVENTS_S, _tell, (app,))
        timer.daemon = True
        timer.start()


def _tell(app: Celery) -> None:
    with _changing:
        events = _waiting.copy()
        _waiting.clear()
    try:
        with app.producer_or_acquire() as producer:
            exchange = get_exchange(producer.connection, name=app.conf.event_exchange)
            producer.publish(events, exchange=exchange, routing_key="task.multi", serializer="json", declare=[exchange], retry=False)
    except Exception as error:  # noqa: BLE001  # the edge of a thread, where each broker has errors of its own: only Flower misses what it would tell
        log.debug("events_not_shown", error=str(error))
