"""Strikes at each named point: a process dies, freezes or loses its connections there, and the run still ends as if nothing had been."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from cantata.client.runs import Run
from cantata.operation.fault_points import FREEZE_S, KINDS, LABELS
from tests.faults import history
from tests.faults.approaches import approach, shapes_to
from tests.faults.past import Violation
from tests.faults.processes import is_alive, is_frozen
from tests.faults.shapes import SHAPES
from tests.faults.stage import Stage
from tests.waiting import until

_numbers = count()


@dataclass(frozen=True)
class Case:
    """What strikes where, in a run of which shape."""

    label: str
    kind: str
    shape: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.label}:{self.times}:{self.kind} in {self.shape}"


@dataclass
class Report:
    """What came of many cases."""

    cases: int = 0
    reached: set[tuple[str, str]] = field(default_factory=set)
    missed: set[tuple[str, str]] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    def missed_by_label(self) -> list[tuple[str, list[str]]]:
        """Labels, and the shapes whose runs never came to them."""
        never = self.missed - self.reached
        return [
            (label, sorted(shape for other, shape in never if other == label))
            for label in sorted({label for label, _ in never})
        ]


def every_case(chance: random.Random, only: Collection[str] = ()) -> Iterator[Case]:
    """Each label with each kind in each shape, or in some; in an order by chance; then again, the next time that one comes to it."""
    for times in count(1):
        shapes = [
            (label, shape.name) for label in LABELS for shape in shapes_to(label) if not only or shape.name in only
        ]
        cases = [Case(label, kind, shape, times) for label, shape in shapes for kind in KINDS]
        chance.shuffle(cases)
        yield from cases


def strike(stage: Stage, cases: Iterable[Case], give_up: float, say: Callable[[str], None]) -> Report:
    """Do cases until none is left or the time is over; then, when those that were frozen have woken, look at all runs again."""
    report = Report()
    for case in cases:
        if time.monotonic() > give_up:
            break
        was_reached, violations = _strike_once(stage, case, f"{case.label}.{case.kind}.{case.shape}.{next(_numbers)}")
        report.cases += 1
        (report.reached if was_reached else report.missed).add((case.label, case.shape))
        report.violations += violations
        for violation in violations:
            say(f"{case}: {violation}")
    until(lambda: not any(map(is_frozen, stage.everybody())), "the waking of all", 2 * FREEZE_S)
    stage.wait_whole()
    for violation in history.check(stage.journal, stage.client.redis):
        if violation not in report.violations:
            report.violations.append(violation)
            say(f"when all was over: {violation}")
    return report


def _strike_once(stage: Stage, case: Case, tag: str) -> tuple[bool, list[Violation]]:
    """Whether the point was reached, and what is wrong with the run."""
    try:
        stage.prepare(SHAPES[case.shape])
        run, was_reached = approach(case.label)(
            stage, SHAPES[case.shape], tag, f"{case.label}:{case.times}:{case.kind}"
        )
    except TimeoutError as error:
        stage.fault.unlink(missing_ok=True)
        return False, [Violation(tag, "", "the run over in time", str(error))]
    runs = stage.together(run)
    if case.kind == "kill":
        _note_the_dead(stage, runs)
    return was_reached, list(history.check_runs(stage.journal, stage.client.redis, [each.run_id for each in runs]))


def _note_the_dead(stage: Stage, runs: Iterable[Run]) -> None:
    """Who was killed at the point is known by the lease that was lost."""
    for pid in {
        int(str(event.worker).rpartition("#")[2]) for run in runs for event in run.log() if event.type == "lost"
    }:
        if not is_alive(pid):
            stage.journal.write("killed", pid=pid)
