"""Log lines of runs: the names bound to a thread or task, the fields made from log records, and what the code of a step prints."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from pydantic import Field

from cantata.operation import json_streams
from cantata.operation.logs.secrets import redact_beginning
from cantata.values import JsonValue, Value

LINE_BYTES = 4096
TEXT_CHARS = (2000, 500, 100)  # of one text in a line: the first of these with which the line fits
MAX_NAME_CHARS = 200  # of a step, a process, a logger
FREE_FIELDS = ("event", "fields")  # may have any value
OWN_FIELDS = frozenset({"run", "step", "attempt", "worker", "event", "level", "timestamp", "logger", "exc_info"})

LOGGER = "print"
MAX_LINE_CHARS = 4096  # of an unfinished line; a longer one is logged in pieces

_log = logging.getLogger(LOGGER)
_unfinished: ContextVar[list[str] | None] = ContextVar("cantata_printed", default=None)
"""The pieces of a line that this step has not finished; None outside a step."""

Names = Mapping[str, str | int]

_NO_NAMES: Names = {}
_bound: ContextVar[Names] = ContextVar("cantata_log", default=_NO_NAMES)


def bound_names() -> Names:
    """Return the names that are bound here."""
    return _bound.get()


@contextmanager
def bind(names: Names) -> Iterator[None]:
    """Bind names for the block; tasks and coroutines that start in it have them too."""
    before = _bound.set(names)
    try:
        yield
    finally:
        _bound.reset(before)


class LogLine(Value):
    """A log line of a run."""

    id: str = Field(default="", description="its position in the log: a reader continues after it")
    at: float = Field(description="when it was logged: seconds since 1970 by Redis's clock")
    level: str = Field(description="debug, info, warning, error or critical")
    event: str = Field(description="the event, or the message of a library or tool")
    step: str | None = None
    attempt: int | None = None
    worker: str | None = Field(default=None, description="the process that logged it")
    logger: str | None = Field(default=None, description="the logger of a library or tool; null for our own events")
    fields: dict[str, JsonValue] = Field(default_factory=dict)


def own_event(record: logging.LogRecord) -> dict[str, Any] | None:
    """Return the event in a record that structlog made; None for any other record, whose message may be a dict too."""
    return record.msg if isinstance(record.msg, dict) and hasattr(record, "_logger") else None


def line_of(record: logging.LogRecord, names: Names) -> dict[str, Any]:
    """Return a record as the fields of `LogLine`, with the run under `run`: an event has fields, any other record is a text."""
    own = own_event(record)
    values = {**names, **(own or {})}
    fields = {key: value for key, value in values.items() if key not in OWN_FIELDS}
    if error := _error_of(record, own):
        fields["exception"] = "".join(traceback.format_exception(error))
    line: dict[str, Any] = {key: values[key] for key in ("run", "step", "attempt", "worker") if key in values}
    line |= {
        "at": record.created,
        "level": record.levelname.lower(),
        "event": own["event"] if own else record.getMessage(),
    }
    return {**line, **({} if own else {"logger": record.name}), **({"fields": fields} if fields else {})}


def _error_of(record: logging.LogRecord, own: Mapping[str, Any] | None) -> BaseException | None:
    given = own.get("exc_info") if own else record.exc_info
    if given is True:
        given = sys.exception()
    if isinstance(given, tuple):
        given = given[1]
    return given if isinstance(given, BaseException) else None


def encode(line: Mapping[str, Any], secrets: Sequence[str]) -> str:
    """Return a line as JSON text, without secrets and of at most LINE_BYTES."""
    for max_chars in TEXT_CHARS:
        text = _dump(line, secrets, max_chars)
        if len(text) * 4 <= LINE_BYTES or len(text.encode()) <= LINE_BYTES:
            return text
    return _dump({**line, "fields": {"cut": True}}, secrets, TEXT_CHARS[-1])


def _dump(line: Mapping[str, Any], secrets: Sequence[str], max_chars: int) -> str:
    named = {key: value for key, value in line.items() if key not in FREE_FIELDS}
    names = {
        key: value if isinstance(value, int | float) else str(value)[:MAX_NAME_CHARS] for key, value in named.items()
    }
    free = {key: _to_json(line[key], secrets, max_chars) for key in FREE_FIELDS if key in line}
    return json.dumps(names | free, ensure_ascii=False, separators=(",", ":"))


def _to_json(value: Any, secrets: Sequence[str], max_chars: int) -> Any:
    """Return a value as JSON has it; a type that JSON has not becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {_text(key, secrets, 100): _to_json(item, secrets, max_chars) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item, secrets, max_chars) for item in value]
    return _text(value, secrets, max_chars)


def _text(value: object, secrets: Sequence[str], max_chars: int) -> str:
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001  # a user's object may raise anything: logging it must not fail the step
        text = f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    return redact_beginning(text, secrets, max_chars=max_chars)


class PrintedText:
    """The standard output of a worker process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, and log the lines that it finishes if a step prints it."""
        is_logged = (
            sys._getframe(1).f_globals.get("__name__") == "logging"
        )  # by a handler of the user's, whose record is a log line itself
        if (pieces := _unfinished.get()) is not None and not is_logged:
            *lines, rest = ("".join(pieces) + text).split("\n")
            pieces[:] = [rest] if len(rest) <= MAX_LINE_CHARS else []
            _log_lines(lines if pieces else [*lines, rest])
        return self._stream.write(text)


@contextmanager
def log_printed() -> Iterator[None]:
    """Log the lines that are printed in the block, which executes a step."""
    pieces: list[str] = []
    before = _unfinished.set(pieces)
    try:
        yield
    finally:
        _log_lines(pieces)
        _unfinished.reset(before)
        json_streams.finish(threading.get_ident())  # else the line of the next step would begin with it


def _log_lines(lines: list[str]) -> None:
    for line in lines:
        if line.strip():
            _log.info("%s", line.rstrip())
