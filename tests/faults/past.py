"""Reads what happened to a run: what its client was told, what the ledger keeps, what tools and models wrote down."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from pydantic import JsonValue
from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY
from cantata.features.forks.fork_requests import FORKED_FROM
from cantata.features.memory.memory_store import MemoryStore
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunRecord
from cantata.ledger.runs.results import chain_response, turn_result
from tests.faults.fault_tools import REMEMBERED
from tests.faults.journal import Journal, Line
from tests.faults.shapes import ROUTER
from tests.integration.state.invariants import ENDINGS, Picture, take


@dataclass(frozen=True)
class Violation:
    """Something that must not be."""

    run: str
    step: str
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"run {self.run}, step {self.step}" if self.step else f"run {self.run}" if self.run else "Redis"
        return f"{place}: expected {self.expected}; found {self.found}"


@dataclass(frozen=True)
class Event:
    """One entry of a run's stream."""

    seq: int
    type: str
    step: str
    attempt: int | None
    worker: str
    at: float
    detail: Mapping[str, JsonValue]

    @property
    def pid(self) -> int:
        """The process of its worker."""
        return int(self.worker.rpartition("#")[2])

    @property
    def error_code(self) -> str:
        """The code of the error that it tells of."""
        return str(cast("dict[str, JsonValue]", self.detail.get("error") or {}).get("code", ""))


@dataclass(frozen=True)
class Told:
    """What was written outside Redis about one run."""

    accepted: Line
    starts: list[Line] = field(default_factory=list)
    finishes: list[Line] = field(default_factory=list)
    asked: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Past:
    """One run that was accepted and is in the ledger."""

    told: Told
    picture: Picture
    output: JsonValue
    hurt: Sequence[Line]
    """Who was frozen or killed."""
    spent_tokens: int = 0
    """What its budget says."""
    remembered: Sequence[JsonValue] = ()
    """What its tools had remembered, in the order it came."""

    @property
    def name(self) -> str:
        """The run as people are told of it."""
        return f"{self.picture.run_id} ({self.told.accepted.shape} {self.told.accepted.tag})"

    @cached_property
    def events(self) -> Mapping[str, list[Event]]:
        """The events of each step, each start among them; those of the run itself under ""."""
        by_step: dict[str, list[Event]] = defaultdict(list)
        for entry, fields in self.picture.log:
            attempt = int(fields["a"]) if fields["a"] else None
            seq, detail = int(entry.split("-")[1]), json.loads(fields["d"] or "{}")
            event = Event(seq, fields["t"], fields["s"], attempt, fields["w"], int(fields["at"]) / 1000, detail)
            if (
                event.type in ENDINGS and event.worker
            ):  # an advance that was recorded with the call in front of it: its start is the same event
                by_step[event.step].append(replace(event, type="started"))
            by_step[event.step].append(event)
        return by_step

    def of(self, step: str, *types: str) -> list[Event]:
        """The events of these types of a step."""
        return [event for event in self.events.get(step, []) if event.type in types]

    def outcome(self, step: str) -> Event | None:
        """The event that ended a step."""
        return next(iter(self.of(step, *ENDINGS)), None)

    @cached_property
    def done(self) -> set[str]:
        """The steps that ended well, also those that grew others to answer in their place."""
        return {
            step
            for step in self.picture.cells
            if (outcome := self.outcome(step)) and outcome.type in ("done", "expanded")
        }

    def attempt_of_task(self, step: str) -> int:
        """The attempt whose task had the outcome of a step, which may be an earlier one than the last; 0 if it was none."""
        task_id = json.loads(self.picture.infos.get(step, "{}")).get("task_id")
        return int(str(task_id).split("-")[-2]) if task_id else 0

    def of_kind(self, *kinds: str) -> Iterator[str]:
        """The steps of some kinds."""
        return (step for step in self.picture.cells if self.picture.spec(step)["kind"] in kinds)

    @property
    def source(self) -> str | None:
        """The run it was forked of."""
        labels: dict[str, str] = json.loads(self.picture.meta["labels"])
        return labels.get(FORKED_FROM)

    @cached_property
    def taken_over(self) -> set[str]:
        """The steps of a fork that are over and never were begun in it: they were done in the run it was forked of."""
        return {step for step in self.done if not self.of(step, "started")} if self.source else set()

    def asked_by(self) -> Iterator[tuple[str, list[Line]]]:
        """The steps that ask a model, with the requests that came to it; in them the synthesizer calls itself `merge`, a router `route`."""
        asking = {step: self._turn(step) for step in self.of_kind("agent.turn", "diskurs.ask")}
        asking |= dict.fromkeys(self.of_kind("team.synthesize"), ("merge", 0))
        asking |= {step: (ROUTER, self.decision(step) - 1) for step in self.of_kind("team.ask")}
        return (
            (step, [line for line in self.told.asked if (line.agent, line.round) == turn])
            for step, turn in asking.items()
        )

    def _turn(self, step: str) -> tuple[str, JsonValue]:
        """Whose turn a step is, and for which round."""
        spec = self.picture.spec(step)
        params = cast("dict[str, JsonValue]", spec.get("params", {}))
        _, _, repeat = step.partition("#")  # of a loop, from 1
        return str(spec["work"]).partition(":")[2], int(repeat) - 1 if repeat else params.get("round", 0)

    def decision(self, step: str) -> int:
        """Which of the run's decisions a step of a router team serves, from 1."""
        params = cast("dict[str, dict[str, int]]", self.picture.spec(step)["params"])
        return params["round"].get("number", 1)

    def tokens_of(self, step: str) -> int:
        """What a step recorded to have used, read and written."""
        usage = json.loads(self.picture.infos.get(step, "{}")).get("usage", {})
        return int(usage.get("input_tokens", 0) + usage.get("output_tokens", 0))

    def was_frozen(self, pids: set[int], since: float, until: float) -> bool:
        """Whether one of these processes stood still at a time between: then it may not know that its step was given to another."""
        return any(
            line.what == "frozen" and line.pid in pids and line.at <= until and line.until >= since
            for line in self.hurt
        )

    def was_killed(self, pid: int) -> bool:
        """Whether a process was killed."""
        return any(line.what == "killed" and line.pid == pid for line in self.hurt)

    def violation(self, step: str, expected: str, found: str) -> Violation:
        """Something that must not be in this run."""
        return Violation(self.name, step, expected, found)


def read(journal: Journal, redis: Redis, only: Collection[str] | None = None) -> Iterator[Past | Violation]:
    """The past of each run (or some) that a client was told is accepted; a violation in place of one that the ledger does not know."""
    lines = journal.lines()
    ledger, hurt = Ledger(redis), [line for line in lines if line.what in ("frozen", "killed")]
    memory = MemoryStore(ledger)
    for run_id, told in _told(lines).items():
        if only is not None and run_id not in only:
            continue
        picture = take(redis, run_id)
        if not picture.meta:
            yield Violation(
                f"{run_id} ({told.accepted.shape})",
                "",
                "a run that was accepted is kept",
                "nothing of it in the ledger",
            )
            continue
        record = ledger.reader.read(run_id)
        output = _output(record)
        spent = cast("str | None", redis.hget(f"cantata:{LIMITS_KEY}:budget:run:{run_id}", "tokens"))
        remembered = cast("list[JsonValue]", memory.retrieve_memory(run_id, REMEMBERED, []))
        yield Past(told, picture, output, hurt, int(spent or 0), remembered)


def _output(record: RunRecord) -> JsonValue:
    """What a run gave: a group, which has no last chain, all that its chains did, without what their gates `x?` said."""
    if record.kind == "turn":
        return turn_result(record).output
    response = chain_response(record)
    if response.final_output is not None:
        return response.final_output
    return {name: output for name, output in response.outputs.items() if not name.endswith("?")}


def _told(lines: Sequence[Line]) -> dict[str, Told]:
    by_run = {line.run_id: Told(line) for line in lines if line.what == "accepted"}
    by_tag = {told.accepted.tag: told for told in by_run.values()}
    for line in lines:
        if line.what == "start":
            by_run[line.run_id].starts.append(line)
        elif line.what == "finish":
            by_run[line.run_id].finishes.append(line)
        elif line.what == "asked":
            by_tag[line.tag].asked.append(line)
    return by_run
