"""The folder of a stack: its data, logs, record and lock, and the directory with a short path that holds its socket."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from cantata.errors import UnavailableError
from cantata.operation.project_folder import stack_folder

LOG_LIMIT = 5_000_000  # bytes; a larger log is rotated when its process starts again
SOCKET_PATH_LIMIT = 103  # bytes: macOS allows 104 with the closing zero, Linux 108
PROBE_SIZE = 65_536  # bytes: a disk with less room than this cannot hold a run

HomePath = str | os.PathLike[str] | None
"""A folder, or the `Home` of one; None for the folder of the environment."""


class Home:
    """The folder of one stack: the given path, else CANTATA_HOME, else `.cantata` in the folder of the project."""

    def __init__(self, path: HomePath = None) -> None:
        self.path = Path(path or stack_folder()).resolve()
        self.data = self.path / "data"
        self.logs = self.path / "logs"
        self.record = self.path / "stack.json"

    def __fspath__(self) -> str:
        return str(self.path)

    def prepare(self) -> None:
        """Make the folder, and check that it can be written to. Raises UnavailableError."""
        probe = self.data / f".probe-{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.data.mkdir(mode=0o700, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            try:
                probe.write_bytes(bytes(PROBE_SIZE))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise UnavailableError(
                f"runs cannot be kept in {str(self.path)!r}: {error.strerror}; "
                "make it writable, free some space, or name another folder in CANTATA_HOME"
            ) from error

    def log(self, name: str) -> Path:
        """Return the log file of a process; a file above LOG_LIMIT is first renamed to `<name>.log.1`."""
        path = self.logs / f"{name}.log"
        if path.exists() and path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_name(f"{path.name}.1"))
        return path

    def try_lock(self) -> int | None:
        """Take the folder's lock. Returns a file descriptor that holds it until it is closed; None if another process has the lock."""
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def make_socket(self) -> Path:
        """Return the path for the server's socket, in a directory of mode 0700 for this user and folder only. Raises UnavailableError."""
        name = f"cantata-{os.getuid()}-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]}"
        roots = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]
        sockets = [Path(root, name, "valkey.sock") for root in roots if root and os.access(root, os.W_OK)]
        fitting = [path for path in sockets if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT]
        if not fitting:
            raise UnavailableError(
                "no directory can hold the stack's socket: point TMPDIR to a writable directory with a short path"
            )
        _make_private(fitting[0].parent)
        return fitting[0]


def _make_private(directory: Path) -> None:
    """Make a directory of mode 0700. If it exists, it must be this user's and have that mode: another user may have prepared it."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise UnavailableError(
                f"{str(directory)!r} should be a directory of yours with mode 0700, to hold the stack's socket, but is not: "
                "remove it if it is yours, else point TMPDIR to a directory of your own"
            ) from None
    except OSError as error:
        raise UnavailableError(
            f"{str(directory)!r}, for the stack's socket, cannot be made: {error.strerror}; set TMPDIR"
        ) from error
