"""Versions of the files that a configuration is read from: it is read again when one of them has changed."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

TICK_NS = 100_000_000  # of the file system's clock, at most: usually it is 4 to 10 ms
COARSE_TICK_NS = 2_000_000_000  # of one that counts whole seconds

_Version = tuple[int, int, int] | None
"""Time of the last change in ns, size and inode; None if there is no such file."""

_reads: ContextVar[dict[str, _Version] | None] = ContextVar("_reads", default=None)


def note(path: Path) -> int:
    """Note that the result depends on a file, on whether it exists, or on the names in a folder. Return its time of change in ns, or 0."""
    version = _version_of(str(path))
    reads = _reads.get()
    if reads is not None:
        reads.setdefault(str(path), version)  # if it changes while it is read, that is seen at the next call
    return version[0] if version else 0


@dataclass(frozen=True)
class _Known(Generic[T]):
    value: T
    files: Mapping[str, _Version]
    search: object


class ByFileVersion(Generic[T]):
    """The results of a function of a path, each kept until a file that it noted, the environment, or the module search path changes."""

    def __init__(self, read: Callable[[Path], T | None], *, most: int = 16) -> None:
        self._read, self._most = read, most
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known[T]] = OrderedDict()

    def __call__(self, path: Path) -> T | None:
        """Return the result for a path; None, and whatever the function raises, is not kept. Several threads read one after the other."""
        with self._lock:
            return self._result(path)

    def _result(self, path: Path) -> T | None:
        key, search = str(path), (os.getcwd(), tuple(sys.path), dict(os.environ))
        known = self._known.get(key)
        if known and known.search == search and all(_version_of(file) == version for file, version in known.files.items()):
            self._known.move_to_end(key)
            return known.value
        files: dict[str, _Version] = {}
        token = _reads.set(files)
        try:
            value = self._read(path)
        finally:
            _reads.reset(token)
        if value is not None and _is_settled(files):
            self._known[key] = _Known(value, files, search)
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return value


def _is_settled(files: Mapping[str, _Version]) -> bool:
    """Return whether a later change of any of these files would show: two within a tick of the file system's clock have the same time."""
    now = time.time_ns()
    times = [version[0] for version in files.values() if version]
    return all(now - at > (TICK_NS if at % 1_000_000_000 else COARSE_TICK_NS) for at in times)


def _version_of(path: str) -> _Version:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
