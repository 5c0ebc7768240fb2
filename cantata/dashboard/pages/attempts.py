"""Attempts of a step, from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cantata.dashboard.pages.page_views import CLOSED, AttemptView
from cantata.models.events import AttemptFailed, RunEvent, StepStarted
from cantata.models.values import ErrorInfo


def attempts_of(events: Iterable[RunEvent], closed_at: float | None) -> list[AttemptView]:
    """Return the attempts, oldest first; an attempt that was running when its run was closed ended then."""
    found: list[AttemptView] = []
    for event in events:
        if isinstance(event, StepStarted):
            found.append(AttemptView(attempt=event.attempt or len(found) + 1, started_at=event.at_ms / 1000, worker=event.worker))
        elif event.ends_attempt and found and found[-1].end is None:
            found[-1] = found[-1].model_copy(update={"end": event.type, "ended_at": event.at_ms / 1000, "error": _error(event)})
    if found and found[-1].end is None and closed_at is not None:
        found[-1] = found[-1].model_copy(update={"end": CLOSED, "ended_at": closed_at})
    return found


def _error(event: RunEvent) -> ErrorInfo | None:
    if isinstance(event, AttemptFailed):
        return event.error
    return ErrorInfo(code=event.type, message=event.explanation, step=event.step) if event.explanation else None
