"""Bounds the memory of the processes that functions run in."""

from __future__ import annotations

import os
import resource

from cantata.errors import ConfigError

VARIABLE = "CANTATA_TOOL_MEMORY_MB"
LEAST_MB = 128  # a child has 75 MB before it imports anything of a user's, and 8 MB for the stack of each thread
LARGE = 0.75  # of the limit: a child that ever had so much is replaced after its step, since Python gives little of it back


def limit_mb() -> int | None:
    """The megabytes that one process may have; None if nothing bounds it. Raises ConfigError."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < LEAST_MB:
        raise ConfigError(f"{VARIABLE} is {text!r}, but must be a whole number of megabytes, {LEAST_MB} or more; or unset it")
    return int(text)


def large_kb() -> int | None:
    """The kilobytes above which a child is replaced after its step; None if none is. Raises ConfigError."""
    limit = limit_mb()
    return None if limit is None else int(limit * 1024 * LARGE)


def bound() -> None:
    """Bound this process and what it starts.

    What counts is memory that can be written (RLIMIT_DATA), not addresses (RLIMIT_AS): a process of 61 MB with 20 threads has 209 MB of
    the one and 1,189 MB of the other, since each thread's allocator reserves 64 MB that it does not use.
    """
    limit = limit_mb()
    if limit is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def said() -> str:
    """What to add to the words `out of memory`."""
    limit = limit_mb()
    return "" if limit is None else f"; its process may have {limit} MB ({VARIABLE})"
