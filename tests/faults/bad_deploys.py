"""Deploys of bad releases under load, to one worker of each sort and then to all: no run fails, and all finish after the repair.

The workers are those of a fleet, each with a release of its own: a folder with a configuration and the code that the runs name.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import yaml

from cantata.client.client import Client
from cantata.client.runs import Run
from cantata.engine.fleet import registry
from cantata.features.batches.batch_store import BatchTarget
from cantata.features.batches.rows import run_id_of_row
from cantata.flows.definitions import Agent, Definitions
from cantata.flows.events import StepRefused
from cantata.flows.instructions import FunctionStep
from cantata.ledger.runs.results import is_over
from tests.faults import formats, history
from tests.faults.load import Load
from tests.faults.past import Violation
from tests.faults.shapes import HAND, HERE, MODEL, SHAPES, Shape, definitions
from tests.faults.stage import READY_S, Stage, end, stage
from tests.waiting import until

AT_ONCE = 12
PROGRESS = 6  # runs that finish before a deploy counts as harmless, or as repaired
PATIENCE_S = 120.0
ROWS = 2
ELSEWHERE = "/srv/faults"
"""The folder of the runs' configuration, which is not on this machine: each worker imports from that of its own."""
SORTS = ("tools", "agents")
CONFIG = "cantata.yaml"
CODE = ("fault_tools.py", "fault_workflows.py", "prices.py", "chief/prompt.py", "clerk/prompt.py")
"""The files of a release that runs import."""
PACKAGE = "faults_lack_this_package"


# --- what runs are made of ------------------------------------------------------------------------------------------


class ElsewhereClient(Client):
    """Submits as a machine does that shares no folder with the workers."""

    def with_definitions(self, definitions: Definitions) -> Client:
        """Name a folder that no worker has."""
        return super().with_definitions(definitions.model_copy(update={"folder": ELSEWHERE}))


@dataclass(frozen=True)
class Batch(Shape):
    """Rows for the agent with tools; nobody feeds them."""

    def submit(self, client: Client, tag: str, journal: Path, *, linger_s: float = 0.0) -> list[Run]:
        """Begin the batch and submit its rows, once."""
        batch = client.batches.open(tag, BatchTarget(kind="agent", name=HAND))
        texts = [text for _, text in self._texts(tag, linger_s)]
        if batch.submitted < len(texts):
            rows = {row: {"text": text} for row, text in enumerate(texts)}
            client.batches.add_rows(tag, rows, {}, start=0, last=True)
        return [client.run(run_id_of_row(batch, row)) for row in range(len(texts))]

    def _texts(self, tag: str, linger_s: float) -> Iterator[tuple[str, str]]:
        yield from ((f"{tag}.{row}", f"{tag}.{row}") for row in range(ROWS))


def _prompt_chain(_: Path) -> Definitions:
    """What a PromptChain of a text and a function is compiled to."""
    return Definitions(
        agents={
            "pat": Agent(
                models=[MODEL], retries=10, instructions=["pat <{input}>", FunctionStep(function="fault_tools:shout")]
            )
        }
    )


NAMES = (
    "row",
    "map",
    "retry",
    "code",
    "mixed",
    "agent",
    "router",
    "broadcast",
    "session",
    "workflow",
    "conductor",
    "group",
    "scheduled",
)
KINDS: Mapping[str, Shape] = {
    **{name: SHAPES[name] for name in NAMES},
    "batch": Batch("batch", answers=SHAPES["agent"].answers),
    "promptchain": Shape(
        "promptchain",
        agent="pat",
        brings=_prompt_chain,
        answers=lambda texts: [f"echo: pat <{text}>".upper() for text in texts],
    ),
}
"""Runs of every sort that imports code, and of the sorts beside them."""


# --- what is wrong with a release -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with a release, or with the environment of a worker."""

    spoil: Callable[[str], str] | None = None
    """The text of each file of code → what the release has instead."""
    config: str | None = None
    """The configuration that the release has instead."""
    wrong_password: bool = False
    """Redis refuses the worker."""

    @property
    def stops_code(self) -> bool:
        """Whether a worker of it must refuse steps."""
        return self.spoil is not None


FAULTS: Mapping[str, Fault] = {
    "bad module": Fault(spoil=lambda text: f"{text}\ndef (:\n"),
    "missing attribute": Fault(spoil=lambda _: ""),
    "missing package": Fault(
        spoil=lambda text: text.replace("import annotations\n", f"import annotations\n\nimport {PACKAGE}\n", 1)
    ),
    "module that exits": Fault(spoil=lambda text: f"{text}\nraise SystemExit('not here')\n"),
    "broken configuration": Fault(config="version: 1\ntools: [\n"),
    "wrong password": Fault(wrong_password=True),
}


class Release:
    """A folder with the configuration and the code of some workers."""

    def __init__(self, folder: Path, fault: Fault | None = None) -> None:
        self.folder, self.fault = folder, fault
        formats.write_desk(folder / "whole")
        texts = {
            name: (HERE / name if (HERE / name).is_file() else folder / "whole" / formats.DESK / name).read_text()
            for name in CODE
        }
        told = definitions().model_dump(mode="json", exclude_defaults=True, by_alias=True, exclude={"folder"})
        self._whole = {**texts, CONFIG: yaml.safe_dump(told)}
        self.repair()
        if fault and fault.spoil:
            self._write({name: fault.spoil(text) for name, text in texts.items()})
        if fault and fault.config:
            self._write({CONFIG: fault.config})

    def repair(self) -> None:
        """Correct all files."""
        self._write(self._whole)

    def install(self) -> None:
        """Install the package that is missing."""
        self._write({f"{PACKAGE}.py": ""})

    def _write(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)  # as a deploy does: nobody reads half a file


# --- the fleet ------------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """A worker of the fleet."""

    name: str
    process: subprocess.Popen[bytes]
    release: Release
    heartbeat: Path

    @property
    def is_ready(self) -> bool:
        """What its probe says."""
        return self.heartbeat.exists()


class Fleet:
    """Two workers of each sort and a coordinator, started and ended one by one."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._starts = 0
        self.workers: dict[str, Worker] = {}

    def start(self, queue: str, number: int, release: Release) -> Worker:
        """Start a worker in the place of the one before, which is ended as a roll-out ends it."""
        place = f"{queue}-{number}"
        if before := self.workers.pop(place, None):
            self._end(before)
        self._starts += 1
        name, heartbeat = f"{place}-{self._starts}", self._world.folder / f"{place}-{self._starts}.heartbeat"
        url = self._world.client.redis_url
        wrong = release.fault is not None and release.fault.wrong_password
        environment = {
            **os.environ,
            "REDIS_URL": url.replace("://", "://nobody:wrong@", 1) if wrong else url,
            "CANTATA_CONFIG": str(release.folder / CONFIG),
            "CANTATA_HEARTBEAT_FILE": str(heartbeat),
            "CANTATA_DRAIN_S": "2",
        }
        command = [sys.executable, "-P", "-m", "cantata_workers", queue, "--name", name, "--concurrency", "4"]
        with (self._world.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=release.folder, stdout=log, stderr=log, start_new_session=True
            )
        self.workers[place] = Worker(name, process, release, heartbeat)
        return self.workers[place]

    def announced(self) -> dict[str, registry.Worker]:
        """The workers that announce themselves, by name."""
        return {worker.name.partition("@")[0]: worker for worker in registry.workers(self._world.client.redis)}

    def wait_started(self, workers: Sequence[Worker]) -> None:
        """Wait until workers have announced themselves, or are refused by Redis."""
        known = [each for each in workers if not (each.release.fault and each.release.fault.wrong_password)]
        until(lambda: {each.name for each in known} <= self.announced().keys(), "the workers of a release", READY_S)

    def close(self) -> None:
        """Kill all."""
        for worker in self.workers.values():
            end(worker.process)

    def _end(self, worker: Worker) -> None:
        worker.process.terminate()
        try:
            worker.process.wait(30.0)
        except subprocess.TimeoutExpired:
            end(worker.process)


@contextmanager
def _fleet(world: Stage) -> Iterator[Fleet]:
    fleet = Fleet(world)
    try:
        yield fleet
    finally:
        fleet.close()


# --- the part -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What came of bad deploys."""

    deploys: int = 0
    runs: int = 0
    refused: int = 0
    """Runs under way of which a step was refused."""
    violations: list[Violation] = field(default_factory=list)


def roll_out(folder: Path, seed: int, seconds: float) -> Report:
    """Deploy each bad release to one worker of each sort, then to all, and repair it; again as long as there is time."""
    report, chance = Report(), random.Random(seed)
    with stage(folder, server_only=True) as world, _fleet(world) as fleet:
        client = ElsewhereClient(world.client.redis_url, config=definitions().model_copy(update={"folder": ELSEWHERE}))
        good = Release(folder / "release-0")
        fleet.start("coordinator", 1, good)
        fleet.wait_started([fleet.start(sort, number, good) for sort in SORTS for number in (1, 2)])
        load = Load(
            world,
            seed,
            lambda chance: (client, chance.choice([*KINDS.values()])),
            at_once=AT_ONCE,
            lingers_s=(0.0, 0.3, 1.5),
        )
        load.start()
        give_up = time.monotonic() + seconds
        try:
            for name in cycle(chance.sample([*FAULTS], len(FAULTS))):
                if time.monotonic() > give_up:
                    break
                report.deploys += 1
                try:
                    report.violations += _deploy(
                        fleet, load, name, folder / f"release-{report.deploys}", chance, report
                    )
                except TimeoutError as error:
                    report.violations.append(Violation("", "", f"no harm by a release with a {name}", str(error)))
                    break
        finally:
            load.end()
            client.close()
        report.runs = len(load.runs)
        report.violations += history.check(world.journal, world.client.redis)
    return report


def _deploy(
    fleet: Fleet, load: Load, name: str, folder: Path, chance: random.Random, report: Report
) -> Iterator[Violation]:
    fault = FAULTS[name]
    bad = Release(folder, fault)
    one = [fleet.start(sort, 1, bad) for sort in SORTS]
    fleet.wait_started(one)
    yield from _not_ready(fleet, one, name)
    _wait_progress(load, f"runs that finish beside one worker of each sort with a {name}")
    every = [*one, *(fleet.start(sort, 2, bad) for sort in SORTS)]
    fleet.wait_started(every)
    yield from _not_ready(fleet, every, name)
    if fault.stops_code:
        report.refused += until(lambda: _refused(load), f"a refused step where all workers have a {name}", PATIENCE_S)
    _repair(fleet, bad, name, chance)
    until(
        lambda: all(worker.is_ready for worker in fleet.workers.values()),
        f"workers that are ready after a {name} was repaired",
        READY_S,
    )
    _wait_progress(load, f"runs that finish after a {name} was repaired")


def _repair(fleet: Fleet, bad: Release, name: str, chance: random.Random) -> None:
    """Correct the release where it is, install what it lacks, or roll back."""
    fault = FAULTS[name]
    if fault.wrong_password or chance.random() < 0.3:
        good = Release(bad.folder.with_name(f"{bad.folder.name}-back"))
        fleet.wait_started([fleet.start(sort, number, good) for sort in SORTS for number in (1, 2)])
    elif name == "missing package" and chance.random() < 0.5:
        bad.install()
    else:
        bad.repair()


def _not_ready(fleet: Fleet, workers: Sequence[Worker], name: str) -> Iterator[Violation]:
    """A roll-out stops at each of these workers, and the fleet's list says why."""
    for worker in workers:
        if worker.is_ready:
            yield Violation("", "", f"a worker with a {name} that is not ready", f"{worker.name} is")
        announced = fleet.announced().get(worker.name)
        if announced and not announced.code_faults:
            yield Violation("", "", f"the reason why {worker.name} is not ready", "none in the registry")


def _wait_progress(load: Load, what: str) -> None:
    """Wait until some runs that are submitted from now on are over."""
    since = len(load.runs)
    until(lambda: sum(is_over(run.status()) for run in load.runs[since:]) >= PROGRESS, what, PATIENCE_S, pause_s=0.5)


def _refused(load: Load) -> int:
    """How many runs under way had a step refused."""
    under_way = [run for run in load.runs if not is_over(run.status())]
    return sum(any(isinstance(event, StepRefused) for event in run.log(timeout_s=0.0)) for run in under_way)
