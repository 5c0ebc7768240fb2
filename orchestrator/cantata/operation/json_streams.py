"""Standard output and standard error of a process as JSON lines: each line that is printed there becomes one object.

Only the standard library is imported, so that a process can begin with it: the lines of an import that fails are objects too.
`cantata.operation.logs` adds the names of the step that prints, and redacts secrets, from the moment at which it is configured.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import select
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

FORMAT = "CANTATA_LOG_FORMAT"
MAX_LINE_CHARS = 16_384  # of a line that is not finished; a longer one is written in pieces

Fields = dict[str, Any]


def _render(fields: Fields) -> str:
    return json.dumps(fields, ensure_ascii=False, default=str)


def _no_names() -> Mapping[str, object]:
    return {}


_rendered: Callable[[Fields], str] = _render
_names: Callable[[], Mapping[str, object]] = _no_names
_installed: list[JsonStream] = []


class JsonStream(io.TextIOBase):
    """A text stream that writes each line as an object to the stream behind it; a line that is an object already stays as it is."""

    def __init__(self, behind: TextIO, name: str, level: str) -> None:
        self.behind = behind
        self._name, self._level = name, level
        self._unfinished: dict[int, str] = {}
        """Thread → the beginning of its line: threads print at once."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of the class it is an attribute
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # as above
        return "backslashreplace"

    @property
    def buffer(self) -> io.RawIOBase:
        """The same stream for bytes."""
        return _Bytes(self)

    def __getattr__(self, name: str) -> Any:
        """Return what only the stream behind has, such as `reconfigure`, which code of users calls."""
        if name == "behind":  # of an object that is not made yet
            raise AttributeError(name)
        return getattr(self.behind, name)

    def fileno(self) -> int:
        return self.behind.fileno()

    def isatty(self) -> bool:
        """Return False: progress and colours are for people."""
        return False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, rest = (self._unfinished.pop(thread, "") + text).split("\n")
        if len(rest) > MAX_LINE_CHARS:
            lines, rest = [*lines, rest], ""
        if rest:
            self._unfinished[thread] = rest
        for line in lines:
            self._write_line(line)
        return len(text)

    def finish(self, thread: int | None = None) -> None:
        """Write the lines that were not finished, of one thread or of all."""
        for each in list(self._unfinished) if thread is None else [thread]:
            self._write_line(self._unfinished.pop(each, ""))

    def _write_line(self, line: str) -> None:
        if not line.strip():
            return
        names = _names()
        if not names and _is_object(line):  # what a step prints never poses as an event of ours
            write_line(self.behind, line)
        else:
            write_line(self.behind, _line(line.rstrip(), self._level, {"logger": self._name, **names}))


class _Bytes(io.RawIOBase):
    def __init__(self, stream: JsonStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)


def is_wanted() -> bool:
    """Return whether this process writes JSON: CANTATA_LOG_FORMAT says so, or says nothing and there is no terminal."""
    wanted = os.environ.get(FORMAT, "").lower()
    return wanted == "json" or (wanted != "human" and not behind(sys.stderr).isatty())


def is_installed() -> bool:
    """Return whether all that this process prints is written as JSON."""
    return bool(_installed)


def install_if_wanted() -> None:
    """Write all that this process and its forks print from now on as JSON lines, if its logs are JSON; uncaught exceptions too."""
    if _installed or not is_wanted():
        return
    sys.stdout, sys.stderr = JsonStream(sys.stdout, "stdout", "info"), JsonStream(sys.stderr, "stderr", "warning")
    _installed[:] = [sys.stdout, sys.stderr]
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_of_thread
    sys.unraisablehook = _log_unraisable
    warnings.showwarning = _show_warning
    logging.lastResort = _LastResort(logging.WARNING)
    atexit.register(finish)


def finish(thread: int | None = None) -> None:
    """Write the lines that this process, or one of its threads, has not finished."""
    for stream in _installed:
        with suppress(OSError, ValueError):
            stream.finish(thread)


def configure(rendered: Callable[[Fields], str], names: Callable[[], Mapping[str, object]]) -> None:
    """Set how the fields of an event become a line, and the names that are bound where something is printed."""
    global _rendered, _names
    _rendered, _names = rendered, names


def behind(stream: TextIO) -> TextIO:
    """Return the stream that takes lines as they are."""
    return stream.behind if isinstance(stream, JsonStream) else stream


def report(
    event: str, text: str, fields: Mapping[str, object], *, level: str = "info", to: TextIO | None = None
) -> None:
    """Write an event to standard error, or `to` another stream: as JSON with its fields, or as a text where logs are for people."""
    stream = sys.stderr if to is None else to
    if _installed:
        write_line(stream, _line(event, level, {**_names(), **fields}))
    else:
        stream.write(f"{text}\n")
        stream.flush()


def write_line(stream: TextIO, line: str) -> None:
    """Write a line in one call, so that the lines of threads and processes which share a stream do not mix. Safe in a signal handler."""
    stream = behind(stream)
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # a stream in memory
        stream.write(f"{line}\n")
        stream.flush()
        return
    data = f"{line}\n".encode("utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:
            select.select([], [number], [])


def _line(event: str, level: str, fields: Mapping[str, object]) -> str:
    at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return _rendered({"event": event, **fields, "level": level, "timestamp": at})


def _is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _log_exception(event: str, error: BaseException, trace: TracebackType | None, **fields: object) -> None:
    text = "".join(traceback.format_exception(type(error), error, trace))
    about = {"error": f"{type(error).__name__}: {error}", "exception": text, **fields}
    with suppress(OSError, ValueError):  # nobody reads any more
        write_line(sys.stderr, _line(event, "critical", about))


def _log_uncaught(_kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log_exception("uncaught_exception", error, trace)


def _log_uncaught_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        thread = args.thread.name if args.thread else ""
        _log_exception("uncaught_exception", args.exc_value, args.exc_traceback, thread=thread)


def _log_unraisable(found: sys.UnraisableHookArgs) -> None:
    if found.exc_value is not None:
        where = found.err_msg or f"exception ignored in {found.object!r}"
        _log_exception("unraisable_exception", found.exc_value, found.exc_traceback, where=where)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = str(message) if file is None else warnings.formatwarning(message, category, filename, lineno, line)
    if file is not None:
        file.write(text)
        return
    where = {"category": category.__name__, "file": filename, "line": lineno}
    write_line(sys.stderr, _line(text, "warning", {"logger": "py.warnings", **where}))


class _LastResort(logging.Handler):
    """Writes what is logged before logs are configured."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            fields: Fields = {"logger": record.name}
            if record.exc_info and record.exc_info[1] is not None:
                fields["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
            write_line(sys.stderr, _line(record.getMessage(), record.levelname.lower(), fields))
