"""Folder of the counts of a worker and its children; removed with the worker, or, if that was killed, when the next one starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "cantata-metrics-"
LOCK = "lock"


class CountsFolder:
    """A private folder. Its creator and its children share a lock on it until the last of them ends."""

    def __init__(self) -> None:
        _remove_stale()
        hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._lock = os.open(hidden / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = hidden.rename(hidden.with_name(hidden.name[1:]))  # visible to others only now that it is locked
        self._pid = os.getpid()

    def remove(self) -> None:
        """Remove it; in a child of its creator nothing happens."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def _remove_stale() -> None:
    """Remove our folders whose processes have all ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
