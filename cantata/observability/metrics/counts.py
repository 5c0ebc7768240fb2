"""Counters and histograms of a process and its children, in files that outlive a killed child.

The files are those of prometheus_client's multi-process mode, and are read by it. They are written here, because its own metrics take
their folder from the environment, which everything that a tool starts would inherit, die with SIGBUS on a full disk, leave files for each
child that ever was, and take two to four times as long.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left
from math import inf
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import mmap_dict, utils

from cantata.observability.metrics.families import BY_NAME, Family

MAX_VALUES = 200  # of one label: what users name (models, queues) is not ours to bound
OTHER = "other"
LONGEST = 120  # characters of a label's value
GONE = "0"  # in place of a process id: what those counted that are gone
FIRST_BYTES = 1 << 16  # of a file, which doubles when it is full
ENTRY_BYTES = 28  # of a number beside its key: the key's length, padding, the number, a time

log = structlog.get_logger(__name__)

Series = tuple[str, tuple[str, ...]]

_File: Any = mmap_dict.MmapedDict  # it has no types
_number: Any = utils.floatToGoString  # nor has this
_bytes = struct.Struct("d").pack


class _Cell:
    """One number in a file."""

    __slots__ = ("_file", "_place", "_value")

    def __init__(self, file: Any, key: str) -> None:
        """Raises OSError if the disk is full."""
        _make_room(file, key)
        self._file = file
        self._value = file.read_value(key)[0]
        self._place = slice(file._positions[key], file._positions[key] + 8)  # the file's own `write_value` looks it up each time

    def add(self, amount: float) -> None:
        """Add to it."""
        self._value += amount
        self._file._m[self._place] = _bytes(self._value)  # the file may be mapped anew when it grows


class Counts:
    """What one process counted. Safe to use from many threads; a forked child makes its own in the same folder."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the disk is full; one that fills later costs the series that are new, and nothing else."""
        self._files = {kind: _opened(folder / f"{kind}_{os.getpid()}.db") for kind in ("counter", "histogram")}
        self._lock = threading.Lock()
        self._cells: dict[Series, list[_Cell]] = {}
        self._seen: dict[tuple[str, int], set[str]] = {}
        self._is_closed = self._is_full = False

    def close(self) -> None:
        """Close its files; what is counted from now on is lost."""
        with self._lock:
            self._is_closed = True
            for file in self._files.values():
                file.close()

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None:
        """Add to a counter."""
        with self._lock:
            if self._is_closed:
                return
            for cell in self._cells.get((name, labels)) or self._new(name, labels):
                cell.add(amount)

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Take a value into a histogram. A time below 0, of a clock that was set back, is 0: a sum that falls reads as a restart."""
        with self._lock:
            if self._is_closed:
                return
            if cells := self._cells.get((name, labels)) or self._new(name, labels):
                cells[0].add(max(0.0, value))
                cells[1 + bisect_left(BY_NAME[name].buckets, value)].add(1.0)

    def _new(self, name: str, labels: tuple[str, ...]) -> list[_Cell]:
        """The cells of a series that is new here; they are shown from now on, as 0, or as what a dead process of the same id counted.

        None while the disk has no room for them.
        """
        bounded = tuple(self._bounded(name, place, label) for place, label in enumerate(labels))
        if bounded != labels:
            return self._cells.get((name, bounded)) or self._new(name, bounded)
        family = BY_NAME[name]
        try:
            cells = self._cells[name, labels] = [_Cell(self._files[family.kind], key) for key in _keys(family, labels)]
        except OSError as error:
            if not self._is_full:
                log.warning("not_counted", metric=name, error=str(error), note="make room where temporary files are, or set TMPDIR")
            self._is_full = True
            return []
        return cells

    def _bounded(self, name: str, place: int, label: str) -> str:
        seen = self._seen.setdefault((name, place), set())
        label = label[:LONGEST].encode("utf-8", "replace").decode()  # half a pair of code units would be no answer to any scrape
        if label not in seen and len(seen) >= MAX_VALUES:
            return OTHER
        seen.add(label)
        return label


def _opened(path: Path) -> Any:
    """A file for numbers, with room on the disk: to write to a mapped page that finds none kills the process. Raises OSError."""
    with path.open("ab") as file:
        if not file.tell():
            _reserve(file.fileno(), FIRST_BYTES)
    return _File(str(path))


def _make_room(file: Any, key: str) -> None:
    """See that the disk has room for one more number in a file. Raises OSError."""
    if key not in file._positions and file._used + len(key.encode()) + ENTRY_BYTES > file._capacity:
        _reserve(file._f.fileno(), 2 * file._capacity)  # to which it will grow


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # elsewhere the room is only hoped for
        os.posix_fallocate(descriptor, 0, size)


def _keys(family: Family, labels: tuple[str, ...]) -> list[str]:
    """Of a counter its one key; of a histogram that of its sum, then those of its buckets."""
    if family.kind == "counter":
        return [mmap_dict.mmap_key(family.name.removesuffix("_total"), family.name, list(family.labels), list(labels), family.help)]
    total = mmap_dict.mmap_key(family.name, f"{family.name}_sum", list(family.labels), list(labels), family.help)
    names, bucket = [*family.labels, "le"], f"{family.name}_bucket"
    bounds = [_number(bound) for bound in (*family.buckets, inf)]
    return [total, *(mmap_dict.mmap_key(family.name, bucket, names, [*labels, bound], family.help) for bound in bounds)]


def files(folder: Path) -> list[Path]:
    """The files that something was written to; one that is just being made is empty."""
    return [file for file in sorted(folder.glob("*_*.db")) if file.stat().st_size]


def fold(folder: Path) -> None:
    """Move what processes counted that are gone into a file for them all, so that a worker may replace any number of children.

    Raises OSError if the disk is full; what was not moved stays where it is.
    """
    for file in files(folder):
        kind, _, pid = file.stem.partition("_")
        if pid == GONE or _lives(int(pid)):
            continue
        counted = [(key, value) for key, value, _, _ in _File.read_all_values_from_file(str(file))]
        kept = _opened(folder / f"{kind}_{GONE}.db")
        try:
            for key, _ in counted:  # room for all of it, before any of it is added
                _make_room(kept, key)
                kept.read_value(key)
            for key, value in counted:
                kept.write_value(key, kept.read_value(key)[0] + value, 0.0)
        finally:
            kept.close()
        file.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
