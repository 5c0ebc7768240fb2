"""Counters and histograms of a process and its children, in files that outlive a killed child.

The files have the format of prometheus_client's multi-process mode, which reads them. Its own writer is not used: it takes the folder
from the environment, which every process that a tool starts would inherit; it dies with SIGBUS on a full disk, leaves files for every
child that ever ran, and takes two to four times as long.
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

from cantata.operation.metrics.families import BY_NAME, Family

MAX_VALUES = 200  # of one label: users choose the names of models and queues
OTHER = "other"
TENANT = "tenant"  # a label with few values, or none: CANTATA_METRICS_TENANTS
MAX_LABEL_CHARS = 120
ENDED = "0"  # in index of a process id: the counts of processes that have ended
FIRST_BYTES = 1 << 16  # of a file, which doubles when it is full
ENTRY_BYTES = 28  # of a number beside its key: the key's length, padding, the number, a time

log = structlog.get_logger(__name__)

Series = tuple[str, tuple[str, ...]]

_File: Any = mmap_dict.MmapedDict  # it has no types
_number: Any = utils.floatToGoString  # nor has this
_bytes = struct.Struct("d").pack


class _Cell:
    """One number in a file."""

    __slots__ = ("_file", "_slice", "_value")

    def __init__(self, file: Any, key: str) -> None:
        """Open a number. Raises OSError if the disk is full."""
        _allocate(file, key)
        self._file = file
        self._value = file.read_value(key)[0]
        self._slice = slice(
            file._positions[key], file._positions[key] + 8
        )  # the file's own `write_value` looks it up at each call

    def add(self, amount: float) -> None:
        """Add to the number."""
        self._value += amount
        self._file._m[self._slice] = _bytes(self._value)  # the mapping may be replaced when the file grows


class Counts:
    """Counts of one process. Safe to use from many threads; a forked child makes its own in the same folder."""

    def __init__(self, folder: Path, *, tenants: int = 0) -> None:
        """Create the files. Raises OSError if the disk is full; if it fills later, only new series are lost.

        `tenants`: the number of tenants with series of their own.
        """
        self._tenants = tenants
        self._files = {kind: _opened(folder / f"{kind}_{os.getpid()}.db") for kind in ("counter", "histogram")}
        self._lock = threading.Lock()
        self._cells: dict[Series, list[_Cell]] = {}
        self._seen: dict[tuple[str, int], set[str]] = {}
        self._is_closed = self._is_full = False

    def close(self) -> None:
        """Close the files; later counts are lost."""
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
        """Add a value to a histogram. A negative time counts as 0 (a clock was set back): Prometheus reads a falling sum as a restart."""
        with self._lock:
            if self._is_closed:
                return
            if cells := self._cells.get((name, labels)) or self._new(name, labels):
                cells[0].add(max(0.0, value))
                cells[1 + bisect_left(BY_NAME[name].buckets, value)].add(1.0)

    def _new(self, name: str, labels: tuple[str, ...]) -> list[_Cell]:
        """Return the cells of a new series: 0, or the counts of an ended process with the same id. Empty while the disk is full."""
        bounded = tuple(self._bounded(name, index, label) for index, label in enumerate(labels))
        if bounded != labels:
            return self._cells.get((name, bounded)) or self._new(name, bounded)
        family = BY_NAME[name]
        try:
            cells = self._cells[name, labels] = [_Cell(self._files[family.kind], key) for key in _keys(family, labels)]
        except OSError as error:
            if not self._is_full:
                log.warning(
                    "metrics_not_recorded",
                    metric=name,
                    error=str(error),
                    note="free space for temporary files, or set TMPDIR",
                )
            self._is_full = True
            return []
        return cells

    def _bounded(self, name: str, index: int, label: str) -> str:
        seen = self._seen.setdefault((name, index), set())
        label = label[:MAX_LABEL_CHARS].encode("utf-8", "replace").decode()  # a lone surrogate would fail every scrape
        is_tenant = BY_NAME[name].labels[index] == TENANT
        if is_tenant and not (label and self._tenants):
            return ""
        if label not in seen and len(seen) >= (self._tenants if is_tenant else MAX_VALUES):
            return OTHER
        seen.add(label)
        return label


def _opened(path: Path) -> Any:
    """Open a file with space allocated on the disk: a write to a mapped page without space kills the process. Raises OSError."""
    with path.open("ab") as file:
        if not file.tell():
            _reserve(file.fileno(), FIRST_BYTES)
    return _File(str(path))


def _allocate(file: Any, key: str) -> None:
    """Allocate space on the disk for one more number in a file. Raises OSError if there is none."""
    if key not in file._positions and file._used + len(key.encode()) + ENTRY_BYTES > file._capacity:
        _reserve(file._f.fileno(), 2 * file._capacity)  # the size to which the file will grow


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # other systems cannot allocate
        os.posix_fallocate(descriptor, 0, size)


def _keys(family: Family, labels: tuple[str, ...]) -> list[str]:
    """Return the one key of a counter; of a histogram the key of its sum, then those of its buckets."""
    if family.kind == "counter":
        return [
            mmap_dict.mmap_key(
                family.name.removesuffix("_total"), family.name, list(family.labels), list(labels), family.help
            )
        ]
    total = mmap_dict.mmap_key(family.name, f"{family.name}_sum", list(family.labels), list(labels), family.help)
    names, bucket = [*family.labels, "le"], f"{family.name}_bucket"
    bounds = [_number(bound) for bound in (*family.buckets, inf)]
    return [total, *(mmap_dict.mmap_key(family.name, bucket, names, [*labels, bound], family.help) for bound in bounds)]


def files(folder: Path) -> list[Path]:
    """Return the files with numbers; a file that is being created is still empty."""
    return [file for file in sorted(folder.glob("*_*.db")) if file.stat().st_size]


def fold(folder: Path) -> None:
    """Merge the counts of ended processes into one file, so that a worker may replace any number of children.

    Raises OSError if the disk is full; counts that were not merged stay where they are.
    """
    for file in files(folder):
        kind, _, pid = file.stem.partition("_")
        if pid == ENDED or _is_alive(int(pid)):
            continue
        counted = [(key, value) for key, value, _, _ in _File.read_all_values_from_file(str(file))]
        kept = _opened(folder / f"{kind}_{ENDED}.db")
        try:
            for key, _ in counted:  # allocate all of it, before any of it is added
                _allocate(kept, key)
                kept.read_value(key)
            for key, value in counted:
                kept.write_value(key, kept.read_value(key)[0] + value, 0.0)
        finally:
            kept.close()
        file.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
