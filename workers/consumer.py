"""Celery's consumer, which tells Flower of its tasks ten times a second instead of after every turn of its loop."""

from __future__ import annotations

import time
from typing import Any

from celery.worker import consumer

EVENTS_S = 0.1

_Celerys: Any = consumer.Consumer  # half of what it has is not in the stubs


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
