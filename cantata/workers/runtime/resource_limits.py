"""The memory limit of processes that execute Python functions."""

from __future__ import annotations

import os
import resource

from cantata.errors import ConfigError

VARIABLE = "CANTATA_TOOL_MEMORY_MB"
MIN_MB = 128  # a child has 75 MB before it imports anything of a user's, and 8 MB for the stack of each thread
RECYCLE_FRACTION = 0.75  # of the limit: a child that ever had more is replaced after its step, since Python returns little of it


def limit_mb() -> int | None:
    """Return the memory limit of one process in megabytes; None if there is none. Raises ConfigError."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < MIN_MB:
        raise ConfigError(f"{VARIABLE} is {text!r}, but must be a whole number of megabytes, {MIN_MB} or more; or unset it")
    return int(text)


def recycle_above_kb() -> int | None:
    """Return the kilobytes above which a child is replaced after its step; None without a limit. Raises ConfigError."""
    limit = limit_mb()
    return None if limit is None else int(limit * 1024 * RECYCLE_FRACTION)


def apply_limit() -> None:
    """Limit the memory of this process and of those that it starts.

    The limit is on writable memory (RLIMIT_DATA), not on addresses (RLIMIT_AS): a process of 61 MB with 20 threads has 209 MB of the
    one and 1,189 MB of the other, since each thread's allocator reserves 64 MB that it does not use.
    """
    limit = limit_mb()
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def limit_note() -> str:
    """Return the limit as the end of an error message about memory; empty without a limit."""
    limit = limit_mb()
    return "" if limit is None else f"; the limit of its process is {limit} MB ({VARIABLE})"
