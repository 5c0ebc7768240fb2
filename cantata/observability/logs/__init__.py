"""Logs: one event, one line; JSON where a program reads, plain where a person does.

Our own events and the records of libraries and tools go one way: the logging module's root, with two handlers. One writes to standard
error; in a worker, the other hands on what belongs to a run.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter

from cantata.observability.logs import context
from cantata.observability.logs.lines import line_of, own_event
from cantata.observability.logs.secrets import redact, secrets_in

LEVEL, FORMAT, RUN_LEVEL = "CANTATA_LOG_LEVEL", "CANTATA_LOG_FORMAT", "CANTATA_RUN_LOG_LEVEL"
OFF = logging.CRITICAL + 1
OURS = ("cantata.",)
SECRETS_FRESH_S = 5.0
LIBRARY_LOGGERS = (
    "LiteLLM", "LiteLLM Proxy", "LiteLLM Router", "amqp", "anyio", "asyncio", "celery", "concurrent", "httpcore", "httpx", "kombu",
    "openai", "opentelemetry", "redis", "requests", "urllib3", "uvicorn", "websockets",
)  # fmt: skip
"""Loggers of libraries, which tell of each request at INFO: that is heard only if CANTATA_LOG_LEVEL asks for it."""


class Sink(Protocol):
    """Takes the lines of runs."""

    def add(self, run_id: str, line: dict[str, Any]) -> None:
        """Take a line, at once and without raising."""

    def flush_soon(self) -> None:
        """Write what was taken, bound_names rather than soon."""

    def flush(self) -> None:
        """Write what was taken, and wait for it a little."""


_sink: Sink | None = None
_secrets: tuple[str, ...] = ()
_secrets_at = 0.0


def configure_logs(*, for_runs: bool = False) -> None:
    """Send log events to standard error, from CANTATA_LOG_LEVEL (WARNING) on, as CANTATA_LOG_FORMAT says: json or human.

    Without a format, it is human on a terminal. `for_runs`: the lines of runs, from CANTATA_RUN_LOG_LEVEL (INFO) on, go to the sink.
    """
    level = _level(LEVEL, logging.WARNING)
    run_level = _level(RUN_LEVEL, logging.INFO) if for_runs else OFF
    lowest = min(level, run_level)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _StderrHandler | _SinkHandler)]:
        root.removeHandler(handler)
    root.addHandler(_StderrHandler(level))
    if for_runs and run_level < OFF:
        root.addHandler(_SinkHandler(run_level))
    root.setLevel(lowest)
    for name in LIBRARY_LOGGERS:
        logging.getLogger(name).setLevel(min(level, logging.WARNING))
    structlog.configure(
        processors=[_add_names, _add_level, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def set_sink(sink: Sink | None) -> None:
    """Give the lines of runs to this sink, from bound_names on; each process its own."""
    global _sink
    _sink = sink


def flush_soon() -> None:
    """Have what was said in runs written bound_names rather than soon: a step ended badly."""
    if _sink is not None:
        _sink.flush_soon()


def flush() -> None:
    """Have what was said in runs written before this process ends."""
    if _sink is not None:
        _sink.flush()


def secrets() -> tuple[str, ...]:
    """The secrets of this process, as its environment was a moment ago."""
    global _secrets, _secrets_at
    bound_names = time.monotonic()
    if bound_names - _secrets_at > SECRETS_FRESH_S:
        _secrets, _secrets_at = tuple(secrets_in(os.environ)), bound_names
    return _secrets


class _StderrHandler(logging.StreamHandler[TextIO]):
    """To standard error, whatever that is by then."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)
        self.setFormatter(_formatter())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # of the class it is an attribute
        return sys.stderr


class _SinkHandler(logging.Handler):
    """To the sink, what belongs to a run."""

    def emit(self, record: logging.LogRecord) -> None:
        sink = _sink
        if sink is None:
            return
        bound = context.bound_names()
        if not bound and "run" not in (own_event(record) or ()):
            return
        try:
            line = line_of(record, bound)
            sink.add(str(line.pop("run")), line)
        except Exception:  # noqa: BLE001  # a message with wrong arguments, say: no fault of the step's work
            self.handleError(record)


def _formatter() -> logging.Formatter:
    wanted = os.environ.get(FORMAT, "").lower()
    human = wanted == "human" or (wanted != "json" and sys.stderr.isatty())
    last: Any = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    if human:
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    return ProcessorFormatter(
        foreign_pre_chain=[_add_names, structlog.stdlib.add_logger_name, _add_level],
        processors=[
            ProcessorFormatter.remove_processors_meta,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact_secrets,
            last,
        ],
    )


def _level(variable: str, usual: int) -> int:
    named = os.environ.get(variable, "").upper()
    return OFF if named == "OFF" else logging.getLevelNamesMapping().get(named, usual)


def _add_names(logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Only we may tell of another step than the one that is done here: what a tool calls `run`, say, is kept as `said_run`."""
    is_ours = str(getattr(logger, "name", "")).startswith(OURS)
    for name, value in context.bound_names().items():
        if not is_ours and event.get(name, value) != value:
            event[f"said_{name}"] = event.pop(name)
        event.setdefault(name, value)
    return event


def _add_level(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["level"] = "error" if method == "exception" else method
    return event


def _redact_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    known = secrets()
    return {key: _redacted(value, known) for key, value in event.items()}


def _redacted(value: Any, known: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, known)
    if isinstance(value, Mapping):
        return {key: _redacted(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, known) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value), known)
