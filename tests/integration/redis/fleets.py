"""Workers on any Redis, a client of theirs, and what they are asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cantata.client.client import Client
from cantata.engine.fleet import registry
from cantata.flows.definitions import Agent, Definitions, Limits, Rates, Team, Tool
from tests.integration.redis.servers import until

HERE = Path(__file__).parent
MODEL = "openai/gpt-4o-mini"
CREW = {"minds": ("coordinator", "agents"), "hands": ("tools",)}
"""A process with threads, and one with children that can be killed."""
START_S, END_S = 80.0, 40.0


def definitions() -> Definitions:
    """What runs may name."""
    return Definitions(
        folder=str(HERE),
        tools={name: Tool(function=f"redis_tools:{name}") for name in ("mark", "add")},
        agents={name: Agent(model=MODEL, instructions=[f"{name} <{{input}}>"]) for name in ("ann", "bob")},
        teams={
            "turns": Team(mode="round_robin", agents=["ann", "bob"]),
            "all": Team(mode="broadcast", agents=["ann", "bob"]),
        },
        limits=Limits(models={MODEL: Rates(rpm=6000, concurrency=20)}),
    )


class Fleet:
    """Workers that run, and a client."""

    def __init__(self, folder: Path, redis_url: str, broker_url: str | None = None, **environment: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, "REDIS_URL": redis_url, "CANTATA_DRAIN_S": "1", **environment}
        if broker_url:
            self.environment["CANTATA_BROKER_URL"] = broker_url
        self.client = Client(redis_url, broker_url=broker_url, config=definitions())
        self.journal = folder / "journal"
        self.journal.touch()
        self.workers = {name: self._start(name, queues) for name, queues in CREW.items()}

    def _start(self, name: str, queues: tuple[str, ...]) -> subprocess.Popen[bytes]:
        usual = ["-m", "cantata_workers"] if len(queues) > 1 else ["-m", "cantata.surfaces.cli", "worker"]
        command = [sys.executable, "-P", *usual, *queues, "--name", name, "--concurrency", "4"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until all serve."""
        try:
            until(
                lambda: {"coordinator", "agents", "tools"} <= registry.slots(self.client.redis).keys(),
                "the workers",
                START_S,
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}; they said: {self.logs()}") from error

    def logs(self) -> str:
        """What they said."""
        return "".join((self.folder / f"{name}.log").read_text() for name in CREW)

    def tracebacks(self) -> list[str]:
        """The lines with one, but for those of Celery on a child that was killed because its run was cancelled."""
        return [line for line in self.logs().splitlines() if "Traceback" in line and "WorkerLostError" not in line]

    def marks(self) -> list[str]:
        """What the tool mark was told, in order."""
        return [line.split()[0] for line in self.journal.read_text().splitlines()]

    def chain(self, *nodes: Mapping[str, Any], **request: Any) -> Any:
        """A chain under way."""
        return self.client.submit_chain({"nodes": list(nodes), "entry_node": nodes[0]["node_id"], **request})

    def mark(self, name: str, seconds: float = 0.0, **fields: Any) -> dict[str, Any]:
        """A node that writes its name into the journal."""
        given = {"journal": str(self.journal), "name": name, "seconds": seconds}
        return {"node_id": name, "kind": "tool", "name": "mark", "input": given, **fields}

    def submit(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call the command line."""
        return submit(self.folder, *words, **{**self.environment, **environment})

    def close(self) -> None:
        """End all."""
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.wait(END_S)
            worker.kill()
            worker.wait()
        self.client.close()


def submit(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in a folder."""
    command = [sys.executable, "-m", "cantata.surfaces.cli", *words]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120, cwd=folder)


class Door:
    """A gateway or Flower, for a block."""

    def __init__(self, workers: Fleet, name: str) -> None:
        command = [sys.executable, "-m", "cantata.surfaces.cli", name, "--port", "0", "--json"]
        log = (workers.folder / f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            command, env=workers.environment, stdout=subprocess.PIPE, stderr=log, text=True, cwd=workers.folder
        )
        log.close()

    def __enter__(self) -> str:
        assert self._process.stdout
        return str(json.loads(self._process.stdout.readline())["url"])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)


@contextmanager
def serving(folder: Path, redis_url: str, broker_url: str | None = None, **environment: str) -> Iterator[Fleet]:
    """A fleet for a block."""
    workers = Fleet(folder, redis_url, broker_url, **environment)
    try:
        workers.wait()
        yield workers
    finally:
        workers.close()


def use_everything(workers: Fleet, label: str) -> None:
    """Whatever touches Redis, and check what it gives: chains, turns, sessions, memory, limits, rotation, forks, signals, cancelling."""
    client = workers.client
    row = [workers.mark(f"{label}1", next_node=f"{label}2"), workers.mark(f"{label}2")]
    chains = [workers.chain(*row) for _ in range(3)]
    waits = workers.chain(
        {"node_id": "w", "kind": "wait", "next_node": "a"},
        {"node_id": "a", "kind": "tool", "name": "add", "input": {"a": 1}},
    )
    rows = [*client.batch([f"{label} {number}" for number in range(5)], team="turns", name=f"rows-{label}")]
    assert sorted((row.row, row.status) for row in rows) == [(number, "succeeded") for number in range(5)]
    long = workers.chain(workers.mark(f"{label}-long", 30.0))
    turns = [client.submit_turn(f"{label} {n}", team="turns", session=f"talk {label}") for n in range(3)]
    both = client.submit_turn("both", team="all")

    assert waits.signal("w", True) in ("taken", "kept")
    assert [chain.result(40).success for chain in chains] == [True] * 3
    assert waits.result(40).final_output == 2
    assert [turn.result(40).status for turn in turns] == ["succeeded"] * 3
    assert both.result(40).status == "succeeded"
    assert len(client.sessions.history(f"talk {label}")) == 6
    until(lambda: f"{label}-long" in workers.marks(), "the long step")
    assert long.cancel() == "cancelled"
    again = client.fork(chains[0].run_id, f"{label}2")
    assert again.wait(40).status == "succeeded"

    bank = client.memory.of(session=label)
    bank.store_memory("key", [1], ttl_s=60)
    assert bank.append("key", 2) == 2
    assert bank.update("key", lambda value: [*value, 3]) == [1, 2, 3]
    assert bank.clear_memories() == 1
    acts = {(entry.action, entry.run_id) for entry in client.audit(most=1000)}
    assert acts >= {("run.cancel", long.run_id), ("run.fork", chains[0].run_id), ("run.signal", waits.run_id)}
    assert {run.run_id for run in client.runs(most=50)} >= {run.run_id for run in (*chains, long, *turns, again)}
