"""Faults around an advance that is executed before the step in front of it is recorded."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from cantata.client.client import Client
from tests.integration.workflows.conftest import PATIENCE_S
from tests.integration.workflows.test_faults import fault  # noqa: F401  # a fixture
from tests.integration.workflows.test_one_commit import mark, marked  # noqa: F401  # a fixture


def test_an_advance_that_cannot_be_recorded_does_not_fail_the_step_in_front_of_it(client: Client, mark: str) -> None:  # noqa: F811
    run = client.submit_workflow("unsendable", {"mark": mark})
    response = run.result(PATIENCE_S)

    record = client.ledger.reader.read(run.run_id)
    print(response.error)
    print({name: (step.state, step.output, step.error) for name, step in record.steps.items()})
    assert record.steps["unsendable/1.mark"].state == "done"
    assert record.steps["unsendable/1.mark"].output == 2


@pytest.mark.parametrize("number", (14, 19, 24))
def test_a_lost_reply_costs_no_other_step_of_the_message(
    client: Client, journal: Path, fault: Path, mark: str, number: int  # noqa: F811  # the fixture
) -> None:  # fmt: skip
    fault.write_text(f"commit-replied:{number}:drop")

    run = client.submit_workflow("two_rows", {"mark": mark, "steps": 3})
    with suppress(TimeoutError):
        run.result(12)

    record = run.record()
    left = {step.step_id: (step.state, step.crashes) for step in record.steps.values() if step.state == "waiting_signal" or step.crashes}
    run.cancel()
    assert (record.status, left) == ("succeeded", {})


@pytest.mark.parametrize("strike", ["", *(f"commit-replied:{number}:drop" for number in (5, 8, 11, 14, 17, 20))])
def test_rounds_with_children_count_each_step_once(client: Client, journal: Path, fault: Path, mark: str, strike: str) -> None:  # noqa: F811
    if strike:
        fault.write_text(strike)
    run = client.submit_workflow("spiral", {"mark": mark, "left": 4})

    response = run.result(15)

    assert response.raise_for_status().final_output == 5 * (1 + 2 + 3 + 2)
    assert set(marked(journal, mark).values()) == {1}
    assert [step.step_id for step in run.record().steps.values() if step.crashes] == []


@pytest.mark.parametrize("attempt", range(12))
def test_a_cancelled_row_cleans_up_once(client: Client, journal: Path, mark: str, attempt: int) -> None:  # noqa: F811
    run = client.submit_workflow("cancelled_row", {"mark": mark})
    time.sleep(0.15 + attempt * 0.0137)
    run.cancel()

    run.result(15)

    record, lines = run.record(), marked(journal, mark)
    assert record.status == "cancelled"
    assert set(lines.values()) == {1}
    assert sum(count for line, count in lines.items() if "-cleaned" in line) == 2, lines


@pytest.mark.slow("a lease runs out")
def test_a_step_is_executed_once_though_the_code_behind_it_keeps_the_interpreter_lock(client: Client, journal: Path, mark: str) -> None:  # noqa: F811
    run = client.submit_workflow("holds_the_lock", {"mark": mark})
    with suppress(TimeoutError):
        run.result(40)

    record, lines = run.record(), marked(journal, mark)
    print(lines, record.status, record.error, {s.step_id: (s.state, s.attempt, s.crashes) for s in record.steps.values()})
    run.cancel()
    assert {line: count for line, count in lines.items() if "behind" not in line and count > 1} == {}


def test_a_workflow_that_fails_logs_its_lines_once(client: Client, journal: Path, mark: str) -> None:  # noqa: F811
    run = client.submit_workflow("logs_and_fails", {"mark": mark})
    response = run.result(PATIENCE_S)

    assert response.error is not None
    time.sleep(1.5)
    lines = [str(line) for line in run.logs() if "logged by" in str(line)]
    failed = [str(line) for line in run.logs() if "step_failed" in str(line)]
    print(lines, failed)
    assert (len(lines), len(failed)) == (1, 1)


def test_code_that_raises_what_is_no_exception_costs_no_outcome(client: Client, journal: Path, mark: str) -> None:  # noqa: F811
    run = client.submit_workflow("interrupts", {"mark": mark})
    with suppress(TimeoutError):
        run.result(12)
    record, lines = run.record(), marked(journal, mark)
    print(lines, record.status, record.error, {s.step_id: (s.state, s.attempt, s.crashes) for s in record.steps.values()})
    run.cancel()
    assert set(lines.values()) == {1}


@pytest.mark.parametrize("attempt", range(6))
def test_signals_are_received_in_order(client: Client, mark: str, attempt: int) -> None:  # noqa: F811
    run = client.submit_workflow("patient", {"mark": mark})
    time.sleep(0.01 * attempt)
    values = ["a", "b", "c", "d", "end"]
    run.signal("go", "gone")
    for value in values:
        run.signal("more", value)
        time.sleep(0.003 * attempt)

    assert run.result(15).raise_for_status().final_output == ["gone", 4, *values]
