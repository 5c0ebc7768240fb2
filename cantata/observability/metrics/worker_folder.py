"""The folder in which a worker and its children count; it goes with the worker, or, if that was killed, when the next one starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "cantata-metrics-"
LOCK = "lock"


class Folder:
    """A private folder. Its lock is held as long as the process that made it, or a child of it, lives."""

    def __init__(self) -> None:
        _remove_left_over()
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._lock = os.open(made / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name[1:]))  # seen by others only now that it is locked
        self._pid = os.getpid()

    def remove(self) -> None:
        """Remove it; in a child of its maker nothing happens."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def _remove_left_over() -> None:
    """Remove the folders of ours whose processes are all gone."""
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
