"""Whose work is being done: the names that every line of a log carries meanwhile, in this thread or task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Names = Mapping[str, str | int]

_NO_NAMES: Names = {}
_bound: ContextVar[Names] = ContextVar("cantata_log", default=_NO_NAMES)


def bound_names() -> Names:
    """The names that are bound here."""
    return _bound.get()


@contextmanager
def bound(names: Names) -> Iterator[None]:
    """Have lines carry these names while the block lasts; tasks and coroutines begun in it have them too."""
    before = _bound.set(names)
    try:
        yield
    finally:
        _bound.reset(before)
