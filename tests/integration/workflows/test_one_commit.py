"""A call and the advance behind it are recorded by one call of the ledger, and no finished step is executed again for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.flows.events import RunEvent
from cantata.ledger.runs.timeline import moments_in
from tests.integration.workflows.conftest import PATIENCE_S
from tests.integration.workflows.test_faults import fault  # noqa: F401  # a fixture
from tests.waiting import until

STEPS = 12


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """Marks the lines of one test."""
    return tmp_path.name


@pytest.fixture(autouse=True)
def known(client: Client) -> None:
    """Wait until the workers know that the code is quick: only then is it executed before the call in front of it is recorded."""
    until(lambda: calls(client) < 0.8 * calls(client, once=True), "fewer calls of the ledger", PATIENCE_S)


def calls(client: Client, *, once: bool = False) -> int:
    """The calls of the ledger, sweeps among them, that a run of 40 steps takes; `once` of one whose steps are recorded alone."""
    before = int(client.redis.info("commandstats")["cmdstat_evalsha"]["calls"])
    run = client.submit_workflow("steady", {"mark": "known", "steps": 40, "once": once})
    assert run.result(PATIENCE_S).raise_for_status().final_output == 40
    return int(client.redis.info("commandstats")["cmdstat_evalsha"]["calls"]) - before


def marked(journal: Path, mark: str) -> Counter[str]:
    """How often each line of a test was written."""
    return Counter(line for line in journal.read_text().splitlines() if f" {mark}" in line)


def test_an_advance_recorded_with_its_call_has_one_event(client: Client, mark: str) -> None:
    def events_of_a_run() -> list[RunEvent]:
        run = client.submit_workflow("steady", {"mark": mark, "steps": 2})
        run.result(PATIENCE_S).raise_for_status()
        return [event for event in run.log() if event.step and "steady" in event.step]

    def begins_alone(events: list[RunEvent]) -> bool:  # on a busy machine the code may have been slow
        return any(event.type == "started" for event in events if str(event.step).endswith("@advance"))

    events = until(
        lambda: (found := events_of_a_run()) and not begins_alone(found) and found,
        "a run whose advances begin with calls",
        PATIENCE_S,
    )
    first, *rest = (
        ("steady", ["started", "expanded"]),
        ("steady/0.mark", ["started", "done"]),
        ("steady/@1/@advance", ["expanded"]),
    )
    rest += ("steady/1.mark", ["started", "done"]), ("steady/@2/@advance", ["done"])
    assert [(event.step, event.type) for event in events] == [
        (step, kind) for step, kinds in (first, *rest) for kind in kinds
    ]
    workers = {event.step: event.worker for event in events if event.worker}
    assert len(workers) == 5, "each attempt names its worker"
    found = moments_in(event for event in events if event.step == "steady/@1/@advance")
    assert found.first_ms == found.started_ms == found.ended_ms is not None


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
    client: Client,
    journal: Path,
    fault: Path,  # noqa: F811  # the fixture
    mark: str,
    strike: str,
    more: int,
) -> None:
    fault.write_text(strike)
    runs = 0

    while fault.exists():  # a process that has just started does not know yet that the code is quick
        run = client.submit_workflow("steady", {"mark": mark, "steps": STEPS})
        assert run.result(PATIENCE_S).raise_for_status().final_output == STEPS
        runs += 1

    assert sum(marked(journal, mark).values()) <= runs * STEPS + more


@pytest.mark.slow("the code uses its 2 s of processor time")
@pytest.mark.parametrize(("then", "message"), [
    ("never wait", "used 2 s of processor time"), ("log and fail", "ValueError: no more"),
    ("ask what cannot be sent", "args[0]: text with half a surrogate pair"),
])  # fmt: skip
def test_whatever_the_code_does_next_the_step_in_front_of_it_is_done_once(
    client: Client, journal: Path, mark: str, then: str, message: str
) -> None:
    run = client.submit_workflow("steady", {"mark": mark, "steps": 3, "then": then})

    response = run.result(PATIENCE_S)

    assert response.error is not None
    assert message in response.error.message
    assert set(marked(journal, mark).values()) == {1}
    assert run.record().steps["steady/2.mark"].state == "done"


def test_code_that_fails_is_executed_once(client: Client, mark: str) -> None:
    run = client.submit_workflow("steady", {"mark": mark, "steps": 3, "then": "log and fail"})
    run.result(PATIENCE_S)

    until(lambda: any("step_failed" in str(line) for line in run.logs()), "the line of the failed step")
    assert len([line for line in run.logs() if f"logged by {mark}" in str(line)]) == 1


@pytest.mark.parametrize("strike", ["commit-replied:8:drop", "commit-replied:17:drop"])
def test_histories_with_children_count_each_step_once(
    client: Client,
    journal: Path,
    fault: Path,  # noqa: F811  # the fixture
    mark: str,
    strike: str,
) -> None:
    fault.write_text(strike)
    run = client.submit_workflow("spiral", {"mark": mark, "left": 4})

    assert run.result(PATIENCE_S).raise_for_status().final_output == 5 * (1 + 2 + 3 + 2)
    assert set(marked(journal, mark).values()) == {1}
    assert [step.step_id for step in run.record().steps.values() if step.crashes] == []
    fault.unlink(missing_ok=True)


def test_a_lost_reply_costs_no_other_step_of_the_message(
    client: Client,
    journal: Path,
    fault: Path,  # noqa: F811  # the fixture
    mark: str,
) -> None:
    fault.write_text("commit-replied:24:drop")

    run = client.submit_workflow("many_rows", {"mark": mark})

    assert run.result(PATIENCE_S).raise_for_status().final_output == [3] * 80
    assert [step.step_id for step in run.record().steps.values() if step.crashes] == []
    fault.unlink(missing_ok=True)
