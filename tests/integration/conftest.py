"""A real Valkey, started once a session, and a ledger on it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.operation.embedded.valkey import find_server
from tests.integration.state.invariants import check_all

PATIENCE_S = 40.0


@pytest.fixture(scope="session")
def valkey() -> Iterator[Redis]:
    """A server of our own that writes its log as in production; its socket lies in a short folder, since its path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ca", dir="/tmp") as folder:
        options = {
            "port": "0", "unixsocket": f"{folder}/s", "unixsocketperm": "700", "dir": folder,
            "appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with subprocess.Popen([find_server(), *words], stdout=subprocess.DEVNULL) as server:
            client = connect(f"unix://{folder}/s")
            try:
                _wait_for(client, Path(folder, "s"))
                yield client
            finally:
                client.close()
                server.terminate()


def _wait_for(client: Redis, socket: Path) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.ping()
        except RedisError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)
        else:
            assert socket.is_socket()
            return


@pytest.fixture
def ledger(valkey: Redis) -> Iterator[Ledger]:
    """A ledger without runs; what a test leaves in it must be sound."""
    valkey.flushdb()
    yield Ledger(valkey)
    check_all(valkey)
