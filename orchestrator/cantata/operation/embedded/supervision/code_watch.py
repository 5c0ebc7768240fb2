"""Watch of the files of user code that the processes of a stack have read: which processes must be replaced to load changed files."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.1
SETTLE_S = 0.2  # without a further change, before files count as saved
MAX_SETTLE_S = 1.0  # for files that change constantly

FileStat = tuple[int, int, int]
"""The time of the last change in nanoseconds, the size and the inode."""
Served = Mapping[str, Set[str]]
"""Path → digests of the texts that a process and its children read."""


@dataclass(frozen=True)
class WatchedFile:
    """A file on the disk."""

    stat: FileStat | None = None
    digest: str = ""
    """Empty until it is read, or if it does not exist."""
    fault: str = ""
    """The reason why no process could import it."""


@dataclass(frozen=True)
class CodeStatus:
    """The files of a process compared with the disk."""

    changed: tuple[str, ...] = ()
    """Files that changed since it read them, all of which can be imported."""
    fault: str = ""
    """The reason why a change cannot be loaded."""


def compare(served: Served, files: Mapping[str, WatchedFile]) -> CodeStatus:
    """Compare the files that a process read with those on the disk."""
    differing = [path for path, digests in sorted(served.items()) if digests != {files[path].digest}]
    faults = [f"{path}: {files[path].fault}" for path in differing if files[path].fault]
    missing = [path for path in differing if files[path].stat is None]
    if faults:
        return CodeStatus(fault=faults[0])
    if missing and len(missing) == len(differing):
        return CodeStatus(fault=f"{missing[0]}: the file is gone")
    return CodeStatus(tuple(path for path in differing if path not in missing))


class CodeWatch:
    """The watched files, as of the last poll."""

    def __init__(self) -> None:
        self.files: dict[str, WatchedFile] = {}
        self._last_change_s = self._first_change_s = 0.0

    def poll(self, served: Served, now_s: float) -> bool:
        """Read the files that changed. Returns whether all files are saved, so that they can be compared."""
        has_changed = False
        for path in served:
            stat, known = stat_of(path), self.files.get(path)
            if known is None or known.stat != stat:
                has_changed = has_changed or known is not None
                self.files[path] = WatchedFile(stat)
        for path in self.files.keys() - served.keys():
            del self.files[path]
        if has_changed:
            self._first_change_s = self._first_change_s or now_s
            self._last_change_s = now_s
        if (
            self._first_change_s
            and now_s - self._last_change_s < SETTLE_S
            and now_s - self._first_change_s < MAX_SETTLE_S
        ):
            return False
        self._first_change_s = 0.0
        for path, file in self.files.items():
            if file.stat is not None and not file.digest:
                self.files[path] = _read(path, file.stat, served[path])
        return True


def stat_of(path: str) -> FileStat | None:
    """Return the stat of a file; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: str, stat: FileStat, served: Set[str]) -> WatchedFile:
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
