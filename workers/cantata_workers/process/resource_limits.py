"""The memory limit of processes that execute Python functions."""

from __future__ import annotations

import resource

from cantata.settings import settings

RECYCLE_FRACTION = (
    0.75  # of the limit: a child that ever had more is replaced after its step, since Python returns little of it
)


def recycle_above_kb() -> int | None:
    """Return the kilobytes above which a child is replaced after its step; None without a limit. Raises ConfigError."""
    limit = settings().tool_memory_mb
    return None if limit is None else int(limit * 1024 * RECYCLE_FRACTION)


def apply_limit() -> None:
    """Limit the memory of this process and of those that it starts.

    The limit is on writable memory (RLIMIT_DATA), not on addresses (RLIMIT_AS): a process of 61 MB with 20 threads has 209 MB of the
    one and 1,189 MB of the other, since each thread's allocator reserves 64 MB that it does not use.
    """
    limit = settings().tool_memory_mb
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit * 1024 * 1024
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def limit_note() -> str:
    """Return the limit as the end of an error message about memory; empty without a limit."""
    limit = settings().tool_memory_mb
    return "" if limit is None else f"; the limit of its process is {limit} MB (CANTATA_TOOL_MEMORY_MB)"
