"""The threads of a process: those that execute messages, and the one in which an agents worker calls quick functions for its models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from cantata.operation.embedded import stack_member
from cantata.settings import settings

P = ParamSpec("P")
Result = TypeVar("Result")

PATIENCE_S = 0.05  # ten times what a quick function takes at most on average


class MessageThreads:
    """Counts the threads that execute messages. A prefork child has none: its parent distributes the messages."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._busy = 0
        self._lock = threading.Lock()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a thread as busy while the block lasts."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    @property
    def is_one_free(self) -> bool:
        """Return whether a thread waits for a message, so that no message waits for a thread."""
        return self._busy < self._number


class ToolThreadBusyError(Exception):
    """A function takes much longer than usual; it may hang."""


class ToolThread:
    """One thread that calls one function at a time: functions of users need not be thread-safe, and may keep objects of their thread."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._since = 0.0
        self._executor = ThreadPoolExecutor(1, "tools")

    @property
    def is_stuck(self) -> bool:
        """Return whether the function under way takes so long that no other should wait for it."""
        return self._busy.locked() and time.monotonic() - self._since > PATIENCE_S

    def call(self, function: Callable[P, Result], *args: P.args, **named: P.kwargs) -> Result:
        """Return the result of a function, called in the thread. Raises ToolThreadBusyError if that is busy for PATIENCE_S."""
        if not self._busy.acquire(timeout=PATIENCE_S):
            raise ToolThreadBusyError
        try:
            self._since = time.monotonic()
            return self._executor.submit(function, *args, **named).result()
        finally:
            self._busy.release()


def may_call_tools() -> bool:
    """Return whether agents workers call quick functions: as configured, else if one command started them with the tools workers."""
    found = settings()
    return (
        stack_member.is_in_stack() and found.tool_memory_mb is None
        if found.tools_in_agents is None
        else found.tools_in_agents
    )
