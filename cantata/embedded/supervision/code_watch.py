"""Watches the files of user code that the processes of a stack have read, and says when other processes should serve them."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.1
SETTLE_S = 0.2  # without another change, before files count as saved
MAX_SETTLE_S = 1.0  # for files that change all the time

Served = Mapping[str, Set[str]]
"""Path → digests of the texts that a process and its children read."""


@dataclass(frozen=True)
class WatchedFile:
    """A file as it lies on the disk."""

    stat: tuple[int, int, int] | None = None
    digest: str = ""
    """Empty while it is not read, or not there."""
    fault: str = ""
    """Why no process could import it."""


@dataclass(frozen=True)
class CodeStatus:
    """Whether a process serves what its files say now."""

    changed: tuple[str, ...] = ()
    """Files that it read otherwise, all of which can be imported."""
    fault: str = ""
    """Why its change is not served."""


def compare(served: Served, files: Mapping[str, WatchedFile]) -> CodeStatus:
    """Compare what a process read with what lies on the disk. Pure."""
    differing = [path for path, digests in sorted(served.items()) if digests != {files[path].digest}]
    faults = [f"{path}: {files[path].fault}" for path in differing if files[path].fault]
    missing = [path for path in differing if files[path].stat is None]
    if faults:
        return CodeStatus(fault=faults[0])
    if missing and len(missing) == len(differing):
        return CodeStatus(fault=f"{missing[0]}: the file is gone")
    return CodeStatus(tuple(path for path in differing if path not in missing))


class CodeWatch:
    """The files that are watched, as they were seen last."""

    def __init__(self) -> None:
        self.files: dict[str, WatchedFile] = {}
        self._last_change_s = self._first_change_s = 0.0

    def look(self, served: Served, now_s: float) -> bool:
        """Look at the files that are served; true if all are saved, so that they can be judged."""
        moved = False
        for path in served:
            stat, known = _stat(path), self.files.get(path)
            if known is None or known.stat != stat:
                moved = moved or known is not None
                self.files[path] = WatchedFile(stat)
        for path in self.files.keys() - served.keys():
            del self.files[path]
        if moved:
            self._first_change_s = self._first_change_s or now_s
            self._last_change_s = now_s
        if self._first_change_s and now_s - self._last_change_s < SETTLE_S and now_s - self._first_change_s < MAX_SETTLE_S:
            return False
        self._first_change_s = 0.0
        for path, file in self.files.items():
            if file.stat is not None and not file.digest:
                self.files[path] = _read(path, file.stat, served[path])
        return True


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: str, stat: tuple[int, int, int], served: Set[str]) -> WatchedFile:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        return WatchedFile(stat, "unreadable", error.strerror or "it cannot be read")
    digest = hashlib.sha256(text).hexdigest()
    return WatchedFile(stat, digest, "" if served == {digest} else _fault_of(path, text))  # 15 ms a file of 1,000 lines


def _fault_of(path: str, text: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of other people's code
            compile(text, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return ""
