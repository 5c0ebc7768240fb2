"""The story of a step's attempts, by its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

from orchestrator.models.values import ErrorInfo, JsonValue
from orchestrator.models.wire import RunEvent
from orchestrator.pages.views import AttemptEnd, AttemptView

ENDS = frozenset(get_args(AttemptEnd)) - {"closed"}


def attempts_of(events: Iterable[RunEvent], closed_at: float | None) -> list[AttemptView]:
    """The attempts, oldest first; one that was under way when its run ended, ended then."""
    made: list[AttemptView] = []
    for event in events:
        if event.type == "started":
            made.append(AttemptView(attempt=event.attempt or len(made) + 1, started_at=event.at_ms / 1000, worker=event.worker))
        elif event.type in ENDS and made and made[-1].end is None:
            made[-1] = made[-1].model_copy(
                update={"end": event.type, "ended_at": event.at_ms / 1000, "error": _error(event.detail.get("error"), event)}
            )
    if made and made[-1].end is None and closed_at is not None:
        made[-1] = made[-1].model_copy(update={"end": "closed", "ended_at": closed_at})
    return made


def _error(error: JsonValue, event: RunEvent) -> ErrorInfo | None:
    if error:
        return ErrorInfo.model_validate(error)
    said = event.detail.get("reason") or event.detail.get("message")
    return ErrorInfo(code=event.type, message=str(cast(str, said)), step=event.step) if said else None
