"""Celery tasks of the step kinds, each of which executes the steps of one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import structlog
from celery import Celery, Task
from celery.app.task import Context

from cantata.engine.dispatch.celery_app import App, Carried
from cantata.engine.duties import TASK_CHECK
from cantata.errors import StepError, UnavailableError
from cantata.ledger.records import AttemptRecord, Begun
from cantata.ledger.redis import outages
from cantata_workers.process import task_events
from cantata_workers.process.message import Delivery, MessageExecution
from cantata_workers.process.process import Process
from cantata_workers.steps.handlers import HANDLERS
from cantata_workers.tools.celery_tasks import result_watcher
from cantata_workers.tools.celery_tasks.result_watcher import ResultWatcher

log = structlog.get_logger(__name__)


class StepTask(Task):  # type: ignore[type-arg]  # its run() is below
    """The Celery task of one step kind."""

    ignore_result = True
    throws = (StepError,)  # Celery then logs no traceback: the step's own line has been written

    def __init__(self, kind: str, process: Callable[[], Process]) -> None:
        self.name = kind
        self._process = process

    def run(self, run_id: str, steps: list[str]) -> str | None:
        """Execute the steps of one message and the cheap steps behind them.

        Raises StepError or AttemptRetried if an attempt of the message failed, so that Celery reports its task as failed or retried.
        """
        app, delivered, carried = cast(App, self.app), self.request.delivery_info or {}, Carried(self.request)
        queue, is_redelivered = (
            app.step_queue(str(delivered.get("routing_key") or "")),
            bool(delivered.get("redelivered")),
        )
        delivery = Delivery(self.name, queue, int(delivered.get("priority") or 0), is_redelivered)
        execution = MessageExecution(app, self._process(), run_id, steps, delivery, carried)
        answer = execution.run()
        own = task_events.own_attempt(steps, [*execution.lost, *execution.done])
        task_events.publish_ahead_attempts(self, run_id, [attempt for attempt in execution.done if attempt is not own])
        if own is not None and (error := own.exception) is not None:
            carried.send(app, answer)
            raise error
        return answer


class TaskCheck(Task):  # type: ignore[type-arg]  # its run() is below
    """The Celery task by which the sweep has workers look for the results of the user's tasks."""

    name = TASK_CHECK
    ignore_result = True

    def run(self, tasks: list[str], revoked: list[str]) -> None:
        """Look for the results of dispatched steps, and revoke tasks; both are `run|attempt|step`."""
        try:
            result_watcher.current().check(tasks, revoked)
        except UnavailableError as error:
            outages.warn(log, "task_results_unavailable", error)


def watch_results(app: App, user_app: Celery, process: Process) -> ResultWatcher:
    """Start to watch the tasks that steps of this process call; return the watcher."""

    def resume(begun: Begun, record: AttemptRecord) -> None:
        delivery = Delivery(begun.spec.kind, begun.spec.queue, begun.priority)
        MessageExecution(app, process, begun.run_id, [], delivery, Carried(Context())).resume(begun, record)

    watcher = ResultWatcher(app, user_app, process, resume)
    result_watcher.serve(watcher)
    return watcher


def register(app: App, process: Callable[[], Process]) -> None:
    """Register a Celery task for each step kind, so that Flower shows steps by their kind. `process` returns the state of this process."""
    for kind in HANDLERS:
        app.register_task(StepTask(kind, process))
    app.register_task(TaskCheck())
