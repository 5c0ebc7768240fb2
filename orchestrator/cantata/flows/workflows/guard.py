"""Guards a workflow's code while it runs: what it must not do is refused, and code that does not come to an await is found."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import zoneinfo
from collections.abc import Callable, Iterator
from functools import cache
from os.path import basename, dirname
from types import FrameType
from typing import Any

from cantata.errors import StepError

MAX_CPU_S = 2.0  # of one activation, with the replay before it; 10,000 commands take a tenth of it
MAX_SHOWN_LINES = 3
_REFUSED = {
    "open": "open", "socket.connect": "a connection", "socket.getaddrinfo": "the look-up of a host", "subprocess.Popen": "subprocess",
    "os.system": "os.system", "_thread.start_new_thread": "a thread", "_thread.start_joinable_thread": "a thread",
}  # fmt: skip
"""Event of Python's audit hooks → the word for it. Python 3.11 has none for threads."""
_TRUSTED = frozenset(
    {"importlib", "_frozen_importlib", "_frozen_importlib_external", "logging", "structlog", "linecache", "zoneinfo"}
)
"""Packages that read files, or send log lines, for code that does no I/O itself."""
_OURS = (dirname(__file__), dirname(asyncio.__file__))
_REMEDY = "do this in a function, and call it with wf.call"

_guarded: set[int] = set()  # threads


def refuse_io() -> None:
    """From now on raise StepError from what this thread opens, connects to or starts, except for imports and log lines."""
    _add_hook()
    _guarded.add(threading.get_ident())


def allow_io() -> None:
    """Let this thread do I/O again."""
    _guarded.discard(threading.get_ident())


@cache
def _add_hook() -> None:
    sys.addaudithook(
        _audit
    )  # it stays for the life of the process, so only processes that run workflows, or ask them queries, have it


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _REFUSED or threading.get_ident() not in _guarded:
        return
    if event == "open" and str(arguments[0]).startswith(zoneinfo.TZPATH):
        return
    if any(frame.f_globals.get("__name__", "").partition(".")[0] in _TRUSTED for frame in _frames(sys._getframe(1))):
        return
    raise io_refused(f"{_REFUSED[event]} {arguments[0]!r}" if event == "open" else _REFUSED[event])


def io_refused(what: str) -> StepError:
    """Return the error for `what` the code of a workflow must not do."""
    return StepError(f"a workflow has no I/O and no threads of its own ({what}): {_REMEDY}", code="workflow_io")


def blocked() -> Callable[[], str]:
    """Return a function for another thread, which tells where the code of this one is once it has used too much processor time.

    It returns an empty text before that, and where the platform does not measure the time of a thread. Imports do not count.
    """
    ident = threading.get_ident()
    clock = time.pthread_getcpuclockid(ident) if hasattr(time, "pthread_getcpuclockid") else None
    began = 0.0 if clock is None else time.clock_gettime(clock)

    def where() -> str:
        nonlocal began
        now = 0.0 if clock is None else time.clock_gettime(clock)
        frame = sys._current_frames().get(ident) if now - began > MAX_CPU_S else None
        if frame is None:
            return ""
        frames = [*_frames(frame)]
        if any("importlib" in each.f_code.co_filename for each in frames):
            began = now
            return ""
        own = [each for each in frames if not each.f_code.co_filename.startswith(_OURS)][-MAX_SHOWN_LINES:]
        lines = (
            " → ".join(f"{basename(each.f_code.co_filename)}:{each.f_lineno}" for each in reversed(own))
            or "an unknown line"
        )
        return f"the workflow's code used {MAX_CPU_S:g} s of processor time without an await that waits (at {lines}): {_REMEDY}"

    return where


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a workflow's code, the innermost first, up to the event loop that runs it."""
    while frame is not None and not (
        frame.f_code.co_name in ("run_ready", "discard") and frame.f_code.co_filename.startswith(_OURS[0])
    ):
        yield frame
        frame = frame.f_back
