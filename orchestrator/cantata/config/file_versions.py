"""Versions of the files that a configuration is read from: it is read again when one of them has changed."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Generic, TypeVar

T = TypeVar("T")

TICK_NS = 100_000_000  # of the file system's clock, at most: usually it is 4 to 10 ms
COARSE_TICK_NS = 2_000_000_000  # of one that counts whole seconds

_Version = tuple[int, int, int, int] | None
"""Times of the last change of the text and of anything else, in ns, then size and inode; None if there is no such file."""

_reads: ContextVar[dict[str, _Version] | None] = ContextVar("_reads", default=None)


def note(path: Path | str) -> int:
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
    surroundings: object


class ByFileVersion(Generic[T]):
    """The results of a function of a path, each kept until a file that it noted, the environment, or the module search path changes.

    Args:
        read: The function. What it raises is not kept.
        keeps: Whether a result may be kept: the function has noted all that it depends on.
        most: How many results are kept.
    """

    def __init__(
        self, read: Callable[[Path], T], *, keeps: Callable[[T], bool] = lambda result: True, most: int = 16
    ) -> None:
        self._read, self._keeps, self._most = read, keeps, most
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known[T]] = OrderedDict()

    def __call__(self, path: Path) -> T:
        """Return the result for a path."""
        key, surroundings = str(path), (_working_folder(), tuple(sys.path), dict(os.environ))
        with self._lock:
            known = self._known.get(key)
            if known:
                self._known.move_to_end(key)
        if (
            known
            and known.surroundings == surroundings
            and all(_version_of(file) == version for file, version in known.files.items())
        ):
            return known.value
        files: dict[str, _Version] = {}
        token = _reads.set(files)
        try:
            value = self._read(path)
        finally:
            _reads.reset(token)
        if self._keeps(value) and _are_settled(files):
            with self._lock:
                self._known[key] = _Known(value, files, surroundings)
                self._known.move_to_end(key)
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
        return value


def _are_settled(files: Mapping[str, _Version]) -> bool:
    """Return whether a later change of any of these files would show: two within a tick of the file system's clock have the same time."""
    now = time_ns()
    times = [at for version in files.values() if version for at in version[:2]]
    return all(now - at > (TICK_NS if at % 1_000_000_000 else COARSE_TICK_NS) for at in times)


def _version_of(path: str) -> _Version:
    try:
        stat = os.stat(path)
    except (OSError, ValueError):  # a text that is no path, such as one with a null byte
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
