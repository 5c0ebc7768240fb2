"""Strikes at points: each point, each fault and each shape has a case; those that found most are in every run of the tests."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cantata.operation.fault_points import KINDS, LABELS
from tests.faults import approaches, points
from tests.faults.points import Case
from tests.faults.shapes import SHAPES
from tests.faults.stage import stage

PATIENCE_S = 600.0

SHORT = (
    Case("accepted", "kill", "row"),
    Case("begun", "freeze", "fan"),
    Case("model-answered", "drop", "agent", 2),
    Case("commit-replied", "drop", "fan"),
    Case("committed", "kill", "agent", 2),
    Case("graph-expanded", "kill", "router", 4),  # the second decision is recorded, its agent is not sent
    Case("run-closed", "kill", "session"),
    Case("timer-fired", "kill", "retry"),
    Case("task-published", "kill", "task"),
)
LONG = (
    Case("accept-replied", "drop", "session"),
    Case("fork-replied", "kill", "fork"),
    Case("begin-replied", "drop", "parked"),
    Case("tool-started", "kill", "map"),
    Case("tool-finished", "freeze", "agent"),
    Case("model-sent", "kill", "broadcast"),
    Case("model-answered", "kill", "workflow", 3),  # in the second round of its loop
    Case("budget-reserved", "kill", "broadcast"),
    Case("budget-settled", "drop", "router", 2),
    Case("rotation-replied", "kill", "round"),
    Case("memory-replied", "drop", "memory"),
    Case("committed", "kill", "conductor", 2),  # a reply is recorded
    Case("run-closed", "freeze", "row"),
    Case("canvas-sent", "drop", "loop"),
    Case("chord-joined", "freeze", "broadcast"),
    Case("successors-sent", "kill", "group"),
    Case("lease-renewed", "drop", "row"),
    Case("step-released", "kill", "diamond"),
    Case("swept", "freeze", "row"),
    Case("graph-expanded", "kill", "code", 2),
    Case("committed", "freeze", "race", 3),
    Case("commit-replied", "drop", "code", 3),
    Case("advance-executed", "kill", "code"),
    Case("timer-fired", "kill", "mixed"),
    Case("schedule-fired", "kill", "scheduled"),
    Case("schedule-fired", "freeze", "scheduled"),
    Case("event-appended", "drop", "unserved"),
    Case("task-published", "freeze", "task"),
    Case("task-published", "drop", "task", 2),
    Case("outbox-replied", "kill", "posted"),
    Case("outbox-replied", "drop", "posted"),
)


def test_each_point_each_fault_and_each_shape_has_its_case() -> None:
    cases = (*SHORT, *LONG)

    assert {case.label for case in cases} == set(LABELS)
    assert {case.kind for case in cases} == set(KINDS)
    assert {case.shape for case in cases} == set(SHAPES)


@pytest.mark.slow("nine strikes, each of which is waited for until its leases have run out")
@pytest.mark.timeout(300)
def test_a_run_ends_as_if_nothing_had_been_where_a_process_is_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike_all(SHORT, tmp_path, monkeypatch)


@pytest.mark.slow("many strikes, each of which is waited for until its leases have run out")
@pytest.mark.thorough("many strikes more, of two to ten seconds each")
@pytest.mark.timeout(PATIENCE_S)
def test_a_run_ends_as_if_nothing_had_been_wherever_a_process_is_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike_all(LONG, tmp_path, monkeypatch)


def strike_all(cases: Sequence[Case], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case is reached, and no history is wrong."""
    monkeypatch.setattr(approaches, "AFTER_S", 10.0)  # each of these points is reached, by a process that stalls too
    with stage(folder, drain_s=0.5, armed=True) as world:
        report = points.strike(world, cases, time.monotonic() + PATIENCE_S, print)
        if report.missed:  # a step that lingers may be over before it is struck, if we stall; not twice
            again = points.strike(
                world, [case for case in cases if (case.label, case.shape) in report.missed], math.inf, print
            )
            report.violations += again.violations
            report.missed = again.missed

    assert report.violations == []
    assert report.missed == set()
