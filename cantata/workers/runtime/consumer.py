"""Celery's consumer, which tells Flower of tasks ten times a second and keeps messages that are no steps of ours as dead letters."""

from __future__ import annotations

import logging
import time
from typing import Any

import structlog
from celery.worker import consumer

from cantata.dispatch.transport import FIRST
from cantata.state.fleet import dead_letters
from cantata.state.redis.connection import RedisFailure

EVENTS_S = 0.1
AGAIN_S = 0.2  # before a message that could not be kept goes back to its queue

_Celerys: Any = consumer.Consumer  # half of what it has is not in the stubs

log = structlog.get_logger(__name__)
_plain = logging.getLogger(__name__)  # as Celery wants one


class Consumer(_Celerys):  # type: ignore[misc]  # for the same reason
    """Events are sent several to a message; one a turn took a third of a busy worker's processor time (py-spy)."""

    _flush_at = 0.0

    def on_send_event_buffered(self) -> None:
        """Flush a moment later, with what comes until then. Called by many threads."""
        now = time.monotonic()
        if self.hub and now >= self._flush_at:
            self._flush_at = now + EVENTS_S
            self.hub.call_soon(self.hub.call_later, EVENTS_S, self._flush_events)

    def shutdown(self) -> None:
        """Tell of what ended while the worker was stopping."""
        self._flush_events()
        super().shutdown()

    # --- messages that are no steps of ours: Celery would discard each of them ----------------------------------------------

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Keep a message that is no Celery task."""
        self._keep(message, "it is no Celery task")

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Keep a task that nobody here registered. A step of a newer version is left to the sweep, which sends it again."""
        if not {"sent_at", FIRST}.isdisjoint(message.headers or {}):
            super().on_unknown_task(body, message, exc)
        else:
            self._keep(message, f"no task is called {str(exc.args[0] if exc.args else exc)[:200]!r}")

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Keep a task whose message Celery cannot use."""
        self._keep(message, f"its message is not a task's: {exc}"[:500])

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Keep a message that cannot be decoded."""
        self._keep(message, f"its body cannot be decoded: {exc}"[:500])

    def _keep(self, message: Any, reason: str) -> None:
        queue = self.app.step_queue(str((message.delivery_info or {}).get("routing_key") or ""))
        try:
            body, found_in = message.body or b"", {"queue": queue, "headers": message.headers, "content_type": message.content_type}
            dead_letters.add(self.app.dead_letters, reason, body=body, **found_in)
        except (RedisFailure, OSError) as error:
            log.warning("dead_letter_not_kept", queue=queue, reason=reason, error=str(error), note="it goes back to its queue")
            time.sleep(AGAIN_S)
            message.reject_log_error(_plain, self.connection_errors, requeue=True)
            return
        log.error("dead_letter", queue=queue, reason=reason, note="`submit status` says what to do")
        message.ack_log_error(_plain, self.connection_errors)
