"""A line of a run's log: what was said, by whom, and how it is kept within its bounds."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from cantata.models.values import JsonValue, Value
from cantata.observability.logs.context import Names
from cantata.observability.logs.secrets import redact_beginning

LINE_BYTES = 4096
TEXT_BYTES = (2000, 500, 100)  # of one text in a line, the first of these by which the line fits
MAX_NAME_CHARS = 200  # characters of a step, a process, a logger
FREE_FIELDS = ("event", "fields")  # what may hold anything
OWN_FIELDS = frozenset({"run", "step", "attempt", "worker", "event", "level", "timestamp", "logger", "exc_info"})


class LogLine(Value):
    """A line of a run's log."""

    id: str = Field(default="", description="its place in the log: a reader goes on after it")
    at: float = Field(description="when it was said: seconds since 1970 by Redis's clock")
    level: str = Field(description="debug, info, warning, error or critical")
    event: str = Field(description="what happened, or what a library or tool said")
    step: str | None = None
    attempt: int | None = None
    worker: str | None = Field(default=None, description="the process that said it")
    logger: str | None = Field(default=None, description="the logger of a library or tool; none of our own lines")
    fields: dict[str, JsonValue] = Field(default_factory=dict)


def own_event(record: logging.LogRecord) -> dict[str, Any] | None:
    """The event in a record that structlog made; None in that of anybody else, who may log a dict too."""
    return record.msg if isinstance(record.msg, dict) and hasattr(record, "_logger") else None


def line_of(record: logging.LogRecord, names: Names) -> dict[str, Any]:
    """What a record says, under the names of `LogLine`, and the run under `run`: an event has fields, anything else is a text."""
    ours = own_event(record)
    said = {**names, **(ours or {})}
    fields = {key: value for key, value in said.items() if key not in OWN_FIELDS}
    if error := _error_of(record, ours):
        fields["exception"] = "".join(traceback.format_exception(error))
    line: dict[str, Any] = {key: said[key] for key in ("run", "step", "attempt", "worker") if key in said}
    line |= {"at": record.created, "level": record.levelname.lower(), "event": ours["event"] if ours else record.getMessage()}
    return {**line, **({} if ours else {"logger": record.name}), **({"fields": fields} if fields else {})}


def _error_of(record: logging.LogRecord, ours: Mapping[str, Any] | None) -> BaseException | None:
    given = ours.get("exc_info") if ours else record.exc_info
    if given is True:
        given = sys.exception()
    if isinstance(given, tuple):
        given = given[1]
    return given if isinstance(given, BaseException) else None


def encode(line: Mapping[str, Any], secrets: Sequence[str]) -> str:
    """The line as JSON, without secrets, and cut to LINE_BYTES."""
    for max_chars in TEXT_BYTES:
        text = _dumped(line, secrets, max_chars)
        if len(text) * 4 <= LINE_BYTES or len(text.encode()) <= LINE_BYTES:
            return text
    return _dumped({**line, "fields": {"cut": True}}, secrets, TEXT_BYTES[-1])


def _dumped(line: Mapping[str, Any], secrets: Sequence[str], max_chars: int) -> str:
    names = {
        key: value if isinstance(value, int | float) else str(value)[:MAX_NAME_CHARS]
        for key, value in line.items()
        if key not in FREE_FIELDS
    }
    said = {key: _plain(line[key], secrets, max_chars) for key in FREE_FIELDS if key in line}
    return json.dumps(names | said, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, secrets: Sequence[str], max_chars: int) -> Any:
    """As JSON has it; what JSON has not becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {_text(key, secrets, 100): _plain(item, secrets, max_chars) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, secrets, max_chars) for item in value]
    return _text(value, secrets, max_chars)


def _text(value: object, secrets: Sequence[str], max_chars: int) -> str:
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001  # whatever a foreign object raises: a line must not harm the step that says it
        text = f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    return redact_beginning(text, secrets, max_chars=max_chars)
