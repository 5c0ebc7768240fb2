"""Structured logs: one event, one line; JSON for programs, plain text on a terminal.

Our events and the records of libraries and tools go through the root logger of the logging module, which has two handlers: one writes to
standard error; in a worker, the other passes the lines of runs to a sink.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter

from cantata.operation import json_streams
from cantata.operation.logs.lines import LOGGER, bound_names, line_of, own_event
from cantata.operation.logs.secrets import redact, secrets_in

LEVEL, RUN_LEVEL = "CANTATA_LOG_LEVEL", "CANTATA_RUN_LOG_LEVEL"
ACCESS = "cantata.access"
OFF = logging.CRITICAL + 1
OURS = ("cantata.", "cantata_frontends.", "cantata_workers.")
SECRETS_FRESH_S = 5.0
LIBRARY_LOGGERS = (
    "LiteLLM", "LiteLLM Proxy", "LiteLLM Router", "amqp", "anyio", "asyncio", "celery", "concurrent", "httpcore", "httpx", "kombu",
    "openai", "opentelemetry", "redis", "requests", "urllib3", "uvicorn", "websockets",
)  # fmt: skip
"""Loggers of libraries that log each request at INFO: their level is at least WARNING, unless CANTATA_LOG_LEVEL is lower."""

ALWAYS = ("worker_ready", "redis_back")
"""Events that a process writes to standard error whatever CANTATA_LOG_LEVEL is."""


class Sink(Protocol):
    """Destination of the log lines of runs."""

    def add(self, run_id: str, line: dict[str, Any]) -> None:
        """Take a line, without waiting or raising."""

    def flush_soon(self) -> None:
        """Start to write the lines that were added."""

    def flush(self) -> None:
        """Write the lines that were added, and wait for it for a bounded time."""


_sink: Sink | None = None
_secrets: tuple[str, ...] = ()
_secrets_at = 0.0


def configure_logs(*, for_runs: bool = False) -> None:
    """Write log events to standard error, from CANTATA_LOG_LEVEL (WARNING) on, in CANTATA_LOG_FORMAT: json or human.

    The default format is human on a terminal, else json. With `for_runs`, the lines of runs from CANTATA_RUN_LOG_LEVEL (INFO) on go to
    the sink.
    """
    level = _level(LEVEL, logging.WARNING)
    run_level = _level(RUN_LEVEL, logging.INFO) if for_runs else OFF
    lowest = min(level, run_level)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _StderrHandler | _SinkHandler)]:
        root.removeHandler(handler)
    root.addHandler(_StderrHandler(level))
    json_streams.configure(_printed_line, bound_names)
    printed = logging.getLogger(LOGGER)
    printed.propagate = False  # its lines are on standard output already
    printed.handlers = []
    if for_runs and run_level < OFF:
        for logger in (root, printed):
            logger.addHandler(_SinkHandler(run_level))
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
    """Set the destination of the log lines of runs in this process."""
    global _sink
    _sink = sink


def flush_soon() -> None:
    """Start to write the log lines of runs now: a step ended badly."""
    if _sink is not None:
        _sink.flush_soon()


def flush() -> None:
    """Write the log lines of runs before this process ends."""
    if _sink is not None:
        _sink.flush()


def secrets() -> tuple[str, ...]:
    """Return the secrets in the environment of this process, read again every few seconds."""
    global _secrets, _secrets_at
    now = time.monotonic()
    if now - _secrets_at > SECRETS_FRESH_S:
        _secrets, _secrets_at = tuple(secrets_in(os.environ)), now
    return _secrets


def access_logger() -> Any:
    """Return the logger of requests, `cantata.access`: it writes to standard error whatever CANTATA_LOG_LEVEL is."""
    logger = logging.getLogger(ACCESS)
    logger.propagate, logger.handlers = False, [_StderrHandler(logging.INFO)]
    logger.setLevel(logging.INFO)
    return structlog.wrap_logger(
        logger,
        processors=[_add_level, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current standard error."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, min(level, logging.INFO))
        self._lowest = level
        self.setFormatter(_formatter())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record: operators wait for those of ALWAYS."""
        is_wanted = record.levelno >= self._lowest or (own_event(record) or {}).get("event") in ALWAYS
        return is_wanted and bool(super().filter(record))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # of the class it is an attribute
        return json_streams.behind(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line in one call: processes that a worker forks share its standard error."""
        try:
            json_streams.write_line(self.stream, self.format(record))
        except Exception:  # noqa: BLE001  # as in every handler: a line that cannot be written must not fail what logs it
            self.handleError(record)


class _SinkHandler(logging.Handler):
    """Passes the records of runs to the sink."""

    def emit(self, record: logging.LogRecord) -> None:
        sink = _sink
        if sink is None:
            return
        names = bound_names()
        if not names and "run" not in (own_event(record) or ()):
            return
        try:
            line = line_of(record, names)
            sink.add(str(line.pop("run")), line)
        except Exception:  # noqa: BLE001  # such as a message with wrong arguments: it must not fail the step
            self.handleError(record)


def _formatter() -> logging.Formatter:
    last: Any = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    if not json_streams.is_wanted():
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
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


def _printed_line(fields: dict[str, Any]) -> str:
    return json.dumps(_redact_secrets(None, "", fields), ensure_ascii=False, default=str)


def _level(variable: str, default: int) -> int:
    name = os.environ.get(variable, "").upper()
    return OFF if name == "OFF" else logging.getLevelNamesMapping().get(name, default)


def _add_names(logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the bound names. Only our own events may name another step: the field `run` of a tool, for example, becomes `logged_run`."""
    is_ours = str(getattr(logger, "name", "")).startswith(OURS)
    for name, value in bound_names().items():
        if not is_ours and event.get(name, value) != value:
            event[f"logged_{name}"] = event.pop(name)
        event.setdefault(name, value)
    return event


def _add_level(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["level"] = "error" if method == "exception" else method
    return event


def _redact_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    known = secrets()
    return {key: _redact_value(value, known) for key, value in event.items()}


def _redact_value(value: Any, known: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, known)
    if isinstance(value, Mapping):
        return {key: _redact_value(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(item, known) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value), known)
