"""Real MCP servers, by a command and by an address, and the journal that they write."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cantata.flows.definitions import McpServer
from tests.integration.fleet.conftest import Journal
from tests.integration.redis.servers import free_port
from tests.waiting import until

SCRIPT = Path(__file__).with_name("mcp_server.py")
PUPPET = Path(__file__).with_name("puppet_server.py")


def by_command(journal: Journal, *options: str, **fields: object) -> McpServer:
    """A server that is started by its command."""
    command = [sys.executable, str(SCRIPT), "--journal", str(journal.path), *options]
    return McpServer.model_validate({"command": command, **fields})


def puppet(*words: str, **fields: object) -> McpServer:
    """A server that is started by its command, and writes what it is told to. Its time-outs are long."""
    command = [sys.executable, str(PUPPET), *words]
    return McpServer.model_validate({"command": command, "timeout_s": 600, "connect_timeout_s": 60, **fields})


class HttpServer:
    """A server at a port of loopback, which it keeps when it is started again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._port_file = journal.path.with_suffix(".port")
        self._port = str(free_port())
        self.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}/mcp"

    def start(self) -> None:
        """Start it."""
        self._port_file.unlink(missing_ok=True)
        options = ["--journal", str(self._journal.path), "--http", str(self._port_file), "--port", self._port]
        self._process = subprocess.Popen([sys.executable, str(SCRIPT), *options], stderr=subprocess.DEVNULL)
        self._port = until(lambda: self._port_file.exists() and self._port_file.read_text(), "the port")
        until(self._answers, "an answer")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(self._port)), 1.0):
            return True
        return False

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(journal: Journal) -> Iterator[HttpServer]:
    """A server at an address."""
    server = HttpServer(journal)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """What the servers of a test note."""
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def web(journal: Journal) -> Iterator[HttpServer]:
    """A server at an address, for one test."""
    with serving(journal) as server:
        yield server


def is_alive(pid: int) -> bool:
    """Whether a process still does something."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_known(pid: int) -> bool:
    """Whether a process is alive, or its end was not taken note of."""
    return Path(f"/proc/{pid}").exists()
