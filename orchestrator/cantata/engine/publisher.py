"""Publishers send the messages of steps to workers: by Celery, or not at all, so that a program needs neither Celery nor a broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from cantata.ledger.records import Ready
from cantata.operation.extras import NO_BROKER, has_celery

COORDINATOR = "coordinator"  # the queue of decisions
TASKS = "tasks"
"""The queue of steps that call tasks of the user's application. Its workers import the application."""
HEARTBEAT = "cantata.task_heartbeat"
"""The message by which a task of the user's says that it is alive."""


def sends(broker_url: str | None) -> bool:
    """Return whether this process sends messages itself: not without a broker, nor beside an old Celery, nor without any."""
    return broker_url != NO_BROKER and has_celery()


class Publisher(Protocol):
    """Sends the messages of steps. `cantata.engine.dispatch.celery_app.App` does it by Celery."""

    def announce_runs(self, runs: Sequence[tuple[str, int]], queue: str = COORDINATOR) -> None:
        """Send the first steps of new runs, given with their priorities; if the broker is unavailable, the sweep sends them later."""

    def send_ready(self, ready: Iterable[tuple[str, Ready]], *, sent_at: float | None = None) -> None:
        """Send steps of any runs, given with their runs. Raises UnavailableError; the sweep sends later what was not sent.

        Args:
            sent_at: A time before the ledger marked their steps as sent; now if None.
        """

    def close(self) -> None:
        """Close the connections to the broker."""


class NoPublisher:
    """Sends nothing: what becomes ready is sent by the sweep of a coordinator."""

    def announce_runs(self, runs: Sequence[tuple[str, int]], queue: str = COORDINATOR) -> None:
        """Leave the runs to the next sweep."""

    def send_ready(self, ready: Iterable[tuple[str, Ready]], *, sent_at: float | None = None) -> None:
        """Leave the steps to a sweep."""

    def close(self) -> None:
        """Nothing is open."""
