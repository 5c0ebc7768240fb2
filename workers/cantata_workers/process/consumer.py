"""Celery's consumer for steps alone: it refuses the queues and tasks of others, and stores messages that are not steps as dead letters.

It publishes task events ten times a second, and serves queues beside those of the worker, each with slots of its own.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import structlog
from celery import bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import consumer, state
from celery.worker.consumer.tasks import Tasks
from kombu.common import ignore_errors

from cantata.engine.dispatch.celery_app import App
from cantata.engine.dispatch.transport import FIRST
from cantata.engine.fleet import dead_letters
from cantata.ledger.redis import outages
from cantata.ledger.redis.connection import RedisFailure
from cantata.operation.packages import OURS

EVENT_INTERVAL_S = 0.1
REQUEUE_DELAY_S = 0.2  # before a message that could not be stored returns to its queue

_CeleryConsumer: Any = consumer.Consumer  # half of its methods are not in the stubs

log = structlog.get_logger(__name__)
_stdlib_log = logging.getLogger(__name__)  # the kind that Celery's methods take


class Consumer(_CeleryConsumer):  # type: ignore[misc]  # for the same reason
    """Sends several events in a message; one event a message took a third of a busy worker's processor time (py-spy)."""

    _flush_at = 0.0
    beside: BesideConsumers

    def start(self) -> None:
        """Consume. Exits with a reason if this would take messages of somebody else, who would miss them."""
        if reason := foreign(self.app):
            log.error("worker_refused", reason=reason)
            raise SystemExit(1)
        for queue in self.app.held:
            self.app.amqp.queues.deselect(self.app.broker_queue(queue))
        super().start()

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Reconnect, as Celery does. Redis may be back before this worker asks it for anything else."""
        if not self.app.own_broker:
            outages.note_loss()
        with warnings.catch_warnings():  # it announces an option of Celery's at each loss; our steps go on without it
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)

    def hold(self, held: frozenset[str], then: Callable[[], object]) -> None:
        """Receive nothing from these queues, and from all others of this worker; then call `then`. Called in the thread that consumes.

        A queue that is held twice, or was before a reconnection, is no error. If the broker is away, the next call tries again.
        """
        try:
            if held != self.app.held:
                for queue in sorted(held - self.app.held):
                    if queue in self.app.beside:
                        self.beside.cancel(self, queue)
                    else:
                        self.cancel_task_queue(self.app.broker_queue(queue))
                let_go, self.app.held = sorted(self.app.held - held), held
                then()
                for queue in let_go:
                    if queue in self.app.beside:
                        self.beside.consume(self, queue)
                    else:
                        self.add_task_queue(self.app.broker_queue(queue))
                self._give_back(held)
            else:
                then()
        except Exception as error:  # noqa: BLE001  # the edge of a callback, in the thread that all messages go through
            log.warning("queues_not_held", queues=sorted(held), error=str(error), note="it is tried again")

    def _give_back(self, held: frozenset[str]) -> None:
        """Return received messages whose tasks have not begun to their queues: other workers begin them at once."""
        for request in list(state.requests.values()):
            queue = self.app.step_queue(str(request.delivery_info.get("routing_key") or ""))
            if queue in held and request not in state.active_requests:
                request.message.headers[FIRST] = True  # it keeps its place in the queue
                request.reject(requeue=True)

    @property
    def is_idle(self) -> bool:
        """True if each message that it has received is done with."""
        return not state.requests

    def add_task_queue(self, queue: str, *args: Any, **options: Any) -> None:
        """Refuse the remote command `add_consumer` for a queue that is not one of steps."""
        if not self.app.is_ours(queue):
            log.error(
                "queue_refused",
                queue=queue,
                reason="it is not one of Cantata's, so its messages belong to another application",
            )
            return
        super().add_task_queue(queue, *args, **options)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial_prefetch_count -= self._slots_beside * self.prefetch_multiplier

    @property
    def max_prefetch_count(self) -> int:
        """The messages of the worker's own queues that it holds at once: all slots, but for those of the queues beside."""
        return int((self.pool.num_processes - self._slots_beside) * self.prefetch_multiplier)

    @property
    def _slots_beside(self) -> int:
        return sum(self.app.beside.values())

    def on_send_event_buffered(self) -> None:
        """Flush a moment later, with the events that come until then. Called by many threads."""
        now = time.monotonic()
        if self.hub and now >= self._flush_at:
            self._flush_at = now + EVENT_INTERVAL_S
            self.hub.call_soon(self.hub.call_later, EVENT_INTERVAL_S, self._flush_events)

    def shutdown(self) -> None:
        """Send the events of tasks that ended while the worker was stopping."""
        self._flush_events()
        super().shutdown()

    # --- messages that are not steps: Celery would discard each of them ----------------------------------------------

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Store a message that is not a Celery task."""
        self._store(message, "it is not a Celery task")

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Store a task that this worker does not know. A step of a newer version is left to the sweep, which sends it again."""
        if not {"sent_at", FIRST}.isdisjoint(message.headers or {}) and _has_steps(message):
            super().on_unknown_task(body, message, exc)
        else:
            self._store(message, f"no task is called {str(exc.args[0] if exc.args else exc)[:200]!r}")

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Store a task whose message Celery cannot use."""
        self._store(message, f"its message is not a task's: {exc}"[:500])

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Store a message that cannot be decoded."""
        self._store(message, f"its body cannot be decoded: {exc}"[:500])

    def _store(self, message: Any, reason: str) -> None:
        queue = self.app.step_queue(str((message.delivery_info or {}).get("routing_key") or ""))
        try:
            body, found_in = (
                message.body or b"",
                {"queue": queue, "headers": message.headers, "content_type": message.content_type},
            )
            dead_letters.add(self.app.dead_letters, reason, body=body, **found_in)
        except (RedisFailure, OSError) as error:
            log.warning(
                "dead_letter_not_stored", queue=queue, reason=reason, error=str(error), note="it returns to its queue"
            )
            time.sleep(REQUEUE_DELAY_S)
            message.reject_log_error(_stdlib_log, self.connection_errors, requeue=True)
            return
        log.error("dead_letter", queue=queue, reason=reason, note="run `submit status` for the action to take")
        message.ack_log_error(_stdlib_log, self.connection_errors)


def foreign(app: App) -> str:
    """Return why a worker of this app would take messages of another application; empty if it would not."""
    if queues := sorted(queue for queue in app.amqp.queues.consume_from if not app.is_ours(queue)):
        return f"it would consume the queue {queues[0]!r}, which is not one of Cantata's ({app.broker_queue('...')})"
    if tasks := sorted(name for name, task in app.tasks.items() if type(task).__module__.partition(".")[0] not in OURS):
        return f"it would execute the task {tasks[0]!r}, which is no step: a task of another application is registered with Cantata's"
    return ""


def _has_steps(message: Any) -> bool:
    """Return whether the arguments of a task are those of a step's: a run and a list of its steps."""
    try:
        args = message.payload[0]
        return isinstance(args[0], str) and isinstance(args[1], list)
    except Exception:  # noqa: BLE001  # whatever is in a message, and whatever kombu raises about it
        return False


class BesideConsumers(bootsteps.StartStopStep):
    """Serves the queues beside the worker's own: a channel for each, which holds no more messages than the queue has slots.

    A message is acknowledged when its task has ended, so the others of the pool's slots are free for the worker's own queues.
    """

    requires = (Tasks,)

    def __init__(self, parent: Any, **options: Any) -> None:
        self._consumers: dict[str, Any] = {}
        parent.beside = self
        super().__init__(parent, **options)

    def start(self, parent: Any) -> None:
        """Begin to consume, on the current connection."""
        self._consumers = {}
        for queue in parent.app.beside:
            if queue not in parent.app.held:
                self.consume(parent, queue)

    def consume(self, parent: Any, queue: str) -> None:
        """Receive messages of a queue, again if that was cancelled."""
        if (known := self._consumers.get(queue)) is not None:
            known.consume()
            return
        app = parent.app
        found = app.amqp.TaskConsumer(
            parent.connection.channel(),
            queues=[app.amqp.queues[app.broker_queue(queue)]],
            on_decode_error=parent.on_decode_error,
        )
        found.on_message = parent.create_task_handler()
        found.qos(prefetch_count=app.beside[queue])
        found.consume()
        self._consumers[queue] = found

    def cancel(self, parent: Any, queue: str) -> None:
        """Receive no more messages of a queue; its channel stays open for those that are being executed."""
        if (found := self._consumers.get(queue)) is not None:
            found.cancel()

    def stop(self, parent: Any) -> None:
        """Receive no more messages."""
        for each in self._consumers.values():
            ignore_errors(parent, each.cancel)

    def shutdown(self, parent: Any) -> None:
        """Close the channels, which returns the messages that did not begin."""
        self.stop(parent)
        for each in self._consumers.values():
            ignore_errors(parent, each.close)
            ignore_errors(parent, each.channel.close)
        self._consumers = {}
