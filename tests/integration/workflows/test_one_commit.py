"""A call and the advance behind it are recorded by one call of the ledger, and no finished step is executed again for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cantata.client.client import Client
from tests.integration.workflows.conftest import PATIENCE_S
from tests.integration.workflows.test_faults import fault  # noqa: F401  # a fixture

STEPS = 12


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """Marks the lines of one test."""
    return tmp_path.name


def marked(journal: Path, mark: str) -> Counter[str]:
    """How often each line of a test was written."""
    return Counter(line for line in journal.read_text().splitlines() if f" {mark}" in line)


def test_each_await_of_a_cheap_step_is_one_call_of_the_ledger(client: Client, mark: str) -> None:
    client.submit_workflow("steady", {"mark": mark, "steps": 2}).result(PATIENCE_S).raise_for_status()
    before = int(client.redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    runs = [client.submit_workflow("steady", {"mark": mark, "steps": 100}) for _ in range(2)]
    for run in runs:
        assert run.result(PATIENCE_S).raise_for_status().final_output == 100

    calls = int(client.redis.info("commandstats")["cmdstat_evalsha"]["calls"]) - before
    assert calls < 2 * 150, "two calls each were 400, beside those of sweeps"


def test_events_and_steps_are_as_with_two_calls(client: Client, mark: str) -> None:
    run = client.submit_workflow("steady", {"mark": mark, "steps": 2})
    run.result(PATIENCE_S).raise_for_status()

    events = [(event.step, event.type) for event in run.log() if event.step and "steady" in event.step]
    ids = ["steady", "steady/0.mark", "steady/@1/@advance", "steady/1.mark", "steady/@2/@advance"]
    ends = ["expanded", "done", "expanded", "done", "done"]
    assert events == [pair for step, end in zip(ids, ends, strict=True) for pair in ((step, "started"), (step, end))]


@pytest.mark.parametrize("once", [False, True])
def test_every_step_is_executed_once(client: Client, journal: Path, mark: str, once: bool) -> None:
    run = client.submit_workflow("steady", {"mark": mark, "steps": STEPS, "once": once})

    assert run.result(PATIENCE_S).raise_for_status().final_output == STEPS
    assert set(marked(journal, mark).values()) == {1}


def test_outputs_of_null_and_failures_reach_the_code(client: Client, journal: Path, mark: str) -> None:
    run = client.submit_workflow("forgetful", {"mark": mark})

    assert run.result(PATIENCE_S).raise_for_status().final_output == [None, None, "tool_error"]


@pytest.mark.slow("a worker is killed or frozen, and its lease must run out")
@pytest.mark.parametrize(("strike", "more"), [
    ("advance-executed:3:kill", 1), ("advance-executed:3:freeze", 1), ("commit-replied:4:drop", 0), ("commit-replied:4:kill", 0),
    ("committed:4:kill", 0), ("advance-executed:3:drop", 0),
])  # fmt: skip
def test_a_fault_costs_the_attempt_under_way_at_most(
    client: Client, journal: Path, fault: Path, mark: str, strike: str, more: int  # noqa: F811  # the fixture
) -> None:  # fmt: skip
    fault.write_text(strike)

    run = client.submit_workflow("steady", {"mark": mark, "steps": STEPS})

    assert run.result(PATIENCE_S).raise_for_status().final_output == STEPS
    assert not fault.exists(), "the point was reached"
    assert sum(marked(journal, mark).values()) <= STEPS + more


@pytest.mark.slow("the code uses its 2 s of processor time, twice")
def test_code_that_never_waits_does_not_cost_the_step_in_front_of_it(client: Client, journal: Path, mark: str) -> None:
    run = client.submit_workflow("marks_and_spins", {"mark": mark})

    response = run.result(PATIENCE_S)

    assert response.error is not None
    assert "used 2 s of processor time" in response.error.message
    assert set(marked(journal, mark).values()) == {1}, "what had ended is recorded before its process is killed"
