"""A Redis, workers and a gateway of a test's own, each a process that may be hurt, and what `submit status` prints of them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.client.client import Client
from cantata.flows.definitions import Definitions
from cantata.ledger.redis.connection import connect
from cantata.operation.embedded.valkey import find_server
from cantata.surfaces.cli.main import submit
from tests.waiting import freeze

TOP = Path(__file__).parents[3]
PATIENCE_S = 60.0  # for a process to start or to end, on a busy machine


@dataclass(frozen=True)
class StatusOutput:
    """Output of `submit status`."""

    exit_status: int
    status: str
    checks: Mapping[str, tuple[str, str]]
    """Name → status, and message with action."""
    errors: str
    seconds: float

    def of(self, name: str) -> tuple[str, str]:
        """Return the check of this name."""
        return self.checks[name]


class Town:
    """The processes, and a client of theirs."""

    def __init__(self, folder: Path, client_definitions: Definitions) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/s"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._definitions = client_definitions

    def start(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to a file of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "REDIS_URL": self.url, **environment},
                start_new_session=True,
                restore_signals=False,
            )  # with its signals as here: Python lets a file that may not grow be an error, which would else end the process
        return self._processes[name]

    def start_redis(self) -> None:
        """Start a server that writes its AOF."""
        (self.folder / "data").mkdir()
        options = {
            "port": "0", "unixsocket": f"{self.folder}/s", "unixsocketperm": "700", "dir": f"{self.folder}/data", "save": "",
            "appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction",
        }  # fmt: skip
        self.start("redis", [find_server(), *(word for key, value in options.items() for word in (f"--{key}", value))])
        self.wait(lambda: (self.folder / "s").exists(), "redis")

    def start_worker(self, queue: str, *, module: str = "cantata_workers", name: str = "") -> None:
        """Start a worker process, and wait until it takes work."""
        name = name or queue
        self.begin_worker(queue, module=module, name=name)
        self.wait_for_worker(name)

    def begin_worker(self, queue: str, *, module: str = "cantata_workers", name: str) -> None:
        """Start a worker process, whatever comes of it."""
        self.start(
            name, [sys.executable, "-P", "-m", module, queue, "--name", name, "--concurrency", "2"], PYTHONPATH=str(TOP)
        )

    def wait_for_worker(self, name: str) -> None:
        """Wait until a worker says that it is there."""
        with connect(self.url) as redis:
            self.wait(lambda: any(each.startswith(f"{name}@") for each in redis.hkeys("cantata:workers")), name)

    def start_gateway(self) -> str:
        """Start a gateway; its address."""
        self.start(
            "gateway",
            [sys.executable, "-P", "-m", "cantata.surfaces.cli", "gateway", "--port", "0", "--json"],
            PYTHONPATH=str(TOP),
        )
        self.wait(lambda: '"url"' in self.log("gateway"), "gateway")
        told = next(line for line in self.log("gateway").splitlines() if '"url"' in line)
        return str(json.loads(told)["url"])

    def pid(self, name: str) -> int:
        """The process of this name."""
        return self._processes[name].pid

    def log(self, name: str) -> str:
        """All that a process has said."""
        return (self.folder / f"{name}.log").read_text()

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Have a process end."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE_S)

    def end_all(self) -> None:
        """Have all processes end, the newest first."""
        for name in reversed(list(self._processes)):
            self._processes[name].send_signal(signal.SIGCONT)
            self.end(name, signal.SIGKILL if name == "redis" else signal.SIGTERM)

    def client(self) -> Client:
        """A client of these processes."""
        return Client(self.url, config=self._definitions)

    def status(self, *words: str, url: str | None = None) -> StatusOutput:
        """Return what `submit status` prints now."""
        since = time.monotonic()
        done = CliRunner().invoke(submit, ["status", "--json", *words], env={"REDIS_URL": url or self.url})
        seconds = time.monotonic() - since
        health = json.loads(done.stdout)["health"]
        checks = {
            check["name"]: (check["status"], f"{check['message']} {check['action']}".strip())
            for check in health["checks"]
        }
        return StatusOutput(done.exit_code, health["status"], checks, done.stderr, seconds)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > give_up:
                pytest.fail(f"{what} did not come within {PATIENCE_S} s")
            time.sleep(0.02)

    def wait_for(self, name: str, status: str, *words: str, text: str = "") -> StatusOutput:
        """Wait until a check has this status, and a message with this text."""
        outputs: list[StatusOutput] = []

        def is_so() -> bool:
            outputs.append(self.status(*words))
            found, message = outputs[-1].checks.get(name, ("", ""))
            return found == status and text in message

        self.wait(is_so, f"{status} of {name}")
        return outputs[-1]

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """A process that does nothing, for a while."""
        freeze(self.pid(name))
        try:
            yield
        finally:
            os.kill(self.pid(name), signal.SIGCONT)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Files of Redis that may not grow, for a while: what it writes is refused, as by a disk without room."""
        largest = max(path.stat().st_size for path in (self.folder / "data").rglob("*") if path.is_file())
        before = resource.prlimit(self.pid("redis"), resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid("redis"), resource.RLIMIT_FSIZE, (largest, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.pid("redis"), resource.RLIMIT_FSIZE, before)


@contextmanager
def town(definitions: Definitions) -> Iterator[Town]:
    """A Redis with workers for coordinator and tools; its socket lies in a short folder, since its path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ca", dir="/tmp") as folder:
        made = Town(Path(folder), definitions)
        try:
            made.start_redis()
            made.start_worker("coordinator")
            made.start_worker("tools")
            yield made
        finally:
            made.end_all()
