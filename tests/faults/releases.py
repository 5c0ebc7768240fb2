"""A change from one release to another, with runs of every sort open: from the release before the move into rooms to ours, or back.

The release before is built from the history. Its clients, and what they submit, are those of its own suite.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from cantata.client.client import Client
from cantata.client.runs import Run
from cantata.ledger.runs.results import is_over
from tests import release_before
from tests.faults import history
from tests.faults.bad_deploys import KINDS
from tests.faults.past import Violation
from tests.faults.shapes import HERE, Shape
from tests.faults.stage import READY_S, Stage, end, stage
from tests.waiting import until

OPEN = ("mixed", "agent", "router", "broadcast", "session", "workflow", "conductor", "group", "batch", "promptchain")
"""Runs that need an agent: while none works they are open."""
FRONTENDS = {"promptchain": "PromptChain", "workflow": "LangSwarm", "conductor": "Diskurs", "group": "ChainBuilder"}
"""The sorts that frontends bring."""
PATIENCE_S = 120.0
END_S = 60.0

SUBMIT = """
import json, sys
from dataclasses import replace
from pathlib import Path
import cantata
from cantata.client.client import Client
from tests.faults import formats, shapes
expected, url, journal, here, tag, *names = sys.argv[1:]
assert Path(cantata.__file__).is_relative_to(expected), cantata.__file__
shapes.HERE = formats.HERE = Path(here)
from tests.faults.bad_deploys import KINDS
with Client(url, config=shapes.definitions()) as client:
    told = {}
    for name in names:
        kind = KINDS[name]
        if name == "promptchain":
            brings = kind.brings
            kind = replace(kind, brings=lambda folder: brings(folder).model_copy(update={"folder": here}))
        told[name] = [run.run_id for run in kind.submit(client, f"{tag}.{name}", Path(journal))]
    print(json.dumps(told))
"""
"""What submits a run of each sort, in the names that both releases have."""


@dataclass(frozen=True)
class Release:
    """A release, as its processes are started."""

    worker: str
    """The module of its workers."""
    path: Sequence[Path] = ()
    """What its processes import first."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its processes."""
        return {"PYTHONPATH": os.pathsep.join(map(str, self.path))} if self.path else {}


@dataclass(frozen=True)
class Submitted(Shape):
    """Runs of a sort that another process submitted."""

    sort: Shape = field(default_factory=lambda: KINDS["row"])
    ids: Sequence[str] = ()

    def submit(self, client: Client, tag: str, journal: Path, *, linger_s: float = 0.0) -> list[Run]:
        """Return them."""
        return [client.run(each) for each in self.ids]

    def expects(self, tag: str, linger_s: float = 0.0) -> list[tuple[str, JsonValue]]:
        """Say what the sort expects."""
        return self.sort.expects(tag, linger_s)


@dataclass
class Report:
    """What came of changes."""

    runs: int = 0
    open: Mapping[str, int] = field(default_factory=dict)
    """A sort → how many of its runs were begun by the first release, and went on when the second came."""
    violations: list[Violation] = field(default_factory=list)


def both(folder: Path) -> tuple[Release, Release]:
    """Return the release before, built in a folder, and ours."""
    site = release_before.unpack(folder)
    return Release("cantata.workers", (site, folder / "source")), Release("cantata_workers")


def change(folder: Path, first: Release, second: Release) -> Report:
    """Have runs begun by one release, go on under both, and finish under the other. Clients of both submit meanwhile."""
    report = Report()
    with stage(folder, drain_s=0.5, server_only=True) as world:
        with _worker(world, first, "coordinator", "tools") as old:
            runs = [*_submit(world, first, "first"), *_submit(world, second, "early")]
            until(lambda: all(_has_begun(run) for _, run in runs), "the first steps of all runs", PATIENCE_S)
            report.open = {name: sum(not _is_over(run) for own, run in runs if own == name) for name in OPEN}
            with _worker(world, second, "coordinator", "agents"):
                _wait(world, runs)
                late = [*_submit(world, first, "last"), *_submit(world, second, "second")]
                os.kill(old.pid, signal.SIGTERM)
                until(lambda: old.poll() is not None, "the end of the old worker", END_S)
                with _worker(world, second, "tools"):
                    _wait(world, late)
        report.runs = len(runs) + len(late)
        world.close()
        report.violations = history.check(world.journal, world.client.redis)
    return report


@contextmanager
def _worker(world: Stage, release: Release, *queues: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have one worker of a release for some queues."""
    *more, last = queues
    worker = world.start_worker(last, program=("-m", release.worker, *more), **release.environment)
    try:
        world.wait_announced(worker.pid)
        yield worker
    finally:
        end(worker)


def _submit(world: Stage, release: Release, tag: str) -> list[tuple[str, Run]]:
    """Submit a run of each sort from a process of a release."""
    words = [
        str(release.path[0] if release.path else HERE.parents[1]),
        world.client.redis_url,
        str(world.journal.path),
        str(HERE),
        tag,
        *KINDS,
    ]
    environment = {**os.environ, **release.environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SUBMIT, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=READY_S,
    )
    if done.returncode:
        raise RuntimeError(f"a client of {release.worker} ended with status {done.returncode}: {done.stderr}")
    told: dict[str, list[str]] = json.loads(done.stdout)
    return [
        (name, world.submit(Submitted(name, sort=KINDS[name], ids=ids, signals=KINDS[name].signals), f"{tag}.{name}"))
        for name, ids in told.items()
    ]


def _is_over(run: Run) -> bool:
    return is_over(run.status())


def _has_begun(run: Run) -> bool:
    return _is_over(run) or bool(run.record().steps)


def _wait(world: Stage, runs: Sequence[tuple[str, Run]]) -> None:
    """Wait for the end of all, also of those that were submitted with one: rows of a batch end in any order."""
    for name, last in runs:
        for run in world.together(last):
            until(partial(_is_over, run), f"the end of {name}, {run}", PATIENCE_S)
