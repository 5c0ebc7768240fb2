"""Names that every log line of the current thread or task has: run, step, attempt, worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

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
