"""Deploys under load: all workers are restarted politely, wave by wave, and the definitions change in between."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cantata.client.client import Client
from tests.faults import history
from tests.faults.load import Load
from tests.faults.past import Violation
from tests.faults.processes import family, pid_of
from tests.faults.shapes import SHAPES, Shape, definitions, deployed
from tests.faults.stage import Stage, stage
from tests.waiting import until

AT_ONCE = 8
EVERY_S = 20.0
DRAIN_S, MARGIN_S = 8.0, 2.0  # most supervisors give 10 s in all; a worker holds nothing by then
END_S = 60.0
LINGERS_S = (0.0, 0.3, 2.0, 12.0)  # the last is longer than a worker drains
WAVES = (("coordinator", "tools", "tasks", "agents"), ("coordinator-2", "tools-2", "tasks-2"))
"""Who is restarted together: of each sort there is another, but for the agents worker, whose turns wait."""


class Versions:
    """What clients know, which is newer after each deploy."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients = ExitStack()
        self.deploy(1)

    def deploy(self, version: int) -> None:
        """From now on runs start with this version."""
        client = self._clients.enter_context(Client(self._url, config=definitions(version=version)))
        self._now = client, deployed(version)

    def choose(self, chance: random.Random) -> tuple[Client, Shape]:
        """A client of now, and mostly the shape whose output tells the version."""
        client, versioned = self._now
        others = (SHAPES[name] for name in ("fan", "broadcast", "agent", "router", "session", "task"))
        return client, chance.choice([versioned, versioned, *others])

    def close(self) -> None:
        """Let go of all clients."""
        self._clients.close()


@dataclass
class Report:
    """What came of deploys."""

    deploys: int = 0
    runs: int = 0
    slowest_end_s: float = 0.0
    """From SIGTERM to the end of a worker's process, which may be longer than it holds steps."""
    violations: list[Violation] = field(default_factory=list)


def roll_out(
    folder: Path,
    seed: int,
    seconds: float,
    *,
    every_s: float = EVERY_S,
    drain_s: float = DRAIN_S,
    margin_s: float = MARGIN_S,
) -> Report:
    """Deploy for so long, under load."""
    report = Report()
    with stage(folder, drain_s=drain_s) as world:
        versions = Versions(world.client.redis_url)
        load = Load(world, seed, versions.choose, at_once=AT_ONCE, lingers_s=LINGERS_S)
        load.start()
        give_up = time.monotonic() + seconds
        try:
            while (since := time.monotonic()) < give_up:
                report.deploys += 1
                versions.deploy(report.deploys + 1)
                for wave in WAVES:
                    _restart(world, wave, drain_s + margin_s, report)
                time.sleep(max(0.0, min(since + every_s, give_up) - time.monotonic()))
        finally:
            load.end()
            versions.close()
        report.runs = len(load.runs)
        report.violations += history.check(world.journal, world.client.redis)
    return report


def _restart(world: Stage, wave: tuple[str, ...], grace_s: float, report: Report) -> None:
    """SIGTERM to some workers; returns when others are in their place."""
    old = [process for name, process in world.workers().items() if name in wave]
    pids = {pid for process in old for pid in family(process.pid)}
    since = time.monotonic()
    for process in old:
        os.kill(process.pid, signal.SIGTERM)
    until(
        lambda: not any(process.alive for process in old) or time.monotonic() - since > grace_s,
        "the end of the old workers",
        2 * grace_s,
    )
    held = [lease for lease in world.client.ledger.leases.names() if pid_of(lease.split("|")[2]) in pids]
    if held:
        report.violations.append(
            Violation("", "", f"no step held by a worker {grace_s:g} s after SIGTERM", ", ".join(held))
        )
    until(lambda: not any(process.alive for process in old), "the end of the old workers", END_S)
    report.slowest_end_s = max(report.slowest_end_s, time.monotonic() - since)
    world.wait_whole()
