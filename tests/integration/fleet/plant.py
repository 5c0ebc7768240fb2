"""A Redis that a test may restart, with worker processes of its own that operators drain and whose queues they pause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.engine.fleet.registry import Worker
from cantata.flows.definitions import Agent, Definitions
from cantata.operation.embedded.valkey import find_server
from cantata.operation.health import evaluate, gather
from tests.integration.fleet.conftest import Journal, definitions, tool
from tests.waiting import until

PATIENCE_S = 40.0


def own_definitions() -> Definitions:
    """Tools of the queue `tools`, and the same in the queue `beside`."""
    found = definitions()
    found.tools["beside"] = found.tools["slow"].model_copy(update={"queue": "beside"})
    found.agents["caller"] = Agent(model="openai/gpt-4o-mini", tools=["quick"])
    found.agents["keeper"] = Agent(model="openai/gpt-4o-mini")
    found.tools["quick"] = found.tools["slow"].model_copy(update={"cheap": True})
    return found


class Plant:
    """A Redis that a test may restart, with worker processes of its own."""

    def __init__(self, folder: Path, broker_url: str = "") -> None:
        self.folder = folder
        self.broker_url = broker_url or None
        self._broker = {"CANTATA_BROKER_URL": broker_url} if broker_url else {}
        self.url = f"unix://{folder}/s"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.server = self.start_redis()

    def start_redis(self) -> subprocess.Popen[bytes]:
        """Start Redis on the same data."""
        options = {
            "port": "0", "unixsocket": f"{self.folder}/s", "dir": str(self.folder), "appendonly": "yes", "appendfsync": "always",
            "save": "", "maxmemory-policy": "noeviction",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        server = subprocess.Popen([find_server(), *words], stdout=subprocess.DEVNULL)
        until(self.answers, "Redis")
        return server

    def answers(self) -> bool:
        """Return whether Redis answers and has its data."""
        try:
            with Redis(unix_socket_path=f"{self.folder}/s") as redis:
                return bool(redis.ping())
        except RedisError:
            return False

    def restart_redis(self) -> None:
        """Kill Redis, and start it on the same data."""
        self.server.kill()
        self.server.wait()
        self.server = self.start_redis()

    def worker(
        self, name: str, *queues: str, concurrency: int = 1, drain_s: float = PATIENCE_S, **variables: str
    ) -> Worker:
        """Start a worker process; return it once it serves."""
        command = [sys.executable, "-m", "cantata.surfaces.cli", "worker", *queues, "--name", name]
        environment = {
            **os.environ,
            "REDIS_URL": self.url,
            "CANTATA_DRAIN_S": str(drain_s),
            "CANTATA_LOG_LEVEL": "INFO",
            **self._broker,
            **variables,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.workers[name] = process = subprocess.Popen(
                [*command, "--concurrency", str(concurrency)],
                env=environment,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        found: Worker = until(lambda: self.announced(name, process.pid), f"the worker {name}", PATIENCE_S)
        return found

    def announced(self, name: str, pid: int | None = None) -> Worker | None:
        """Return a worker as it last announced itself."""
        with Client(self.url, config=own_definitions()) as client:
            return next(
                (
                    each
                    for each in client.fleet.workers()
                    if each.name.startswith(f"{name}@") and pid in (None, each.pid)
                ),
                None,
            )

    def stop(self, name: str, sign: int = signal.SIGKILL) -> int:
        """Send a signal to a worker and its children; return its exit status."""
        process = self.workers.pop(name)
        os.killpg(process.pid, sign)
        return process.wait(PATIENCE_S)

    def submit(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call `submit` as an operator does."""
        command = [sys.executable, "-m", "cantata.surfaces.cli", *words]
        environment = {**os.environ, "REDIS_URL": self.url, "CANTATA_CONFIG": ""}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def checks(self) -> dict[str, str]:
        """Return what `submit status` says: check → its status and message."""
        found = evaluate(gather(self.url, version="1.0.0"))
        return {check.name: f"{check.status}: {check.message}; {check.action}" for check in found.checks}

    def waiting(self, queue: str) -> int:
        """Return how many messages wait in a queue, of all priorities."""
        with Redis(unix_socket_path=f"{self.folder}/s") as redis:
            return sum(int(redis.llen(key)) for key in redis.keys(f"cantata.{queue}*"))

    def end(self) -> None:
        """End what is left."""
        for name in list(self.workers):
            self.stop(name)
        self.server.kill()
        self.server.wait()


def run_slow(client: Client, journal: Journal, mark: object, seconds: float = 0.0, name: str = "slow") -> ChainRun:
    """Submit a run of one step that takes so long."""
    node = tool("a", name, journal=str(journal.path), mark=mark, **({} if name == "held" else {"seconds": seconds}))
    return client.submit_chain({"nodes": [node], "entry_node": "a"})


def release(journal: Journal) -> None:
    """Let `held` steps end."""
    with journal.path.open("a") as file:
        file.write(json.dumps({"what": "release", "name": ""}) + "\n")


def done(journal: Journal) -> Counter[object]:
    """Return how often each mark was finished."""
    return Counter(line["name"] for line in journal.of("finish"))


def state_of(plant: Plant, name: str) -> str:
    """Return the state that a worker announces."""
    found = plant.announced(name)
    return found.state if found else "gone"
