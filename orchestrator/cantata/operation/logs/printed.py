"""Text that the code of a step prints: it goes on to standard output, and each line is a log line of the run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

LOGGER = "print"
MAX_LINE_CHARS = 4096  # of an unfinished line; a longer one is logged in pieces

_log = logging.getLogger(LOGGER)
_unfinished: ContextVar[list[str] | None] = ContextVar("cantata_printed", default=None)
"""The pieces of a line that this step has not finished; None outside a step."""


class PrintedText:
    """The standard output of a worker process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, and log the lines that it finishes if a step prints it."""
        is_logged = sys._getframe(1).f_globals.get("__name__") == "logging"  # by a handler of the user's, whose record is a log line itself
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


def _log_lines(lines: list[str]) -> None:
    for line in lines:
        if line.strip():
            _log.info("%s", line.rstrip())
