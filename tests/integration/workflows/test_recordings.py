"""Recordings of workflows in Python are replayed: their functions are not called again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.testing import replay
from tests.integration.state.test_values import AWKWARD, same
from tests.integration.workflows.conftest import PATIENCE_S, definitions
from tests.waiting import until


@pytest.mark.parametrize(
    ("name", "given", "output"),
    [
        ("row", {"steps": 5}, 5),
        ("fan", {"width": 20}, list(range(1, 21))),
        ("asyncio_fan", {}, [[2, 3, 4], [12, 13]]),
    ],
)
def test_a_workflow_is_replayed_without_calling_its_functions(
    client: Client, journal: Path, name: str, given: dict[str, Any], output: object
) -> None:
    run = client.submit_workflow(name, given)
    assert run.result(PATIENCE_S).raise_for_status().final_output == output
    document = json.loads("".join(run.export()))
    before = journal.read_text()

    comparison = replay(document, definitions=definitions())

    assert (comparison.same, comparison.now.output) == (True, output), str(comparison)
    assert journal.read_text() == before


def test_awkward_values_come_through_code_forks_recordings_and_replays_as_they_are(client: Client) -> None:
    run = client.submit_workflow("echo", {"value": AWKWARD})
    same(run.result(PATIENCE_S).raise_for_status().final_output, AWKWARD)
    fork = client.fork(run.run_id, "echo/0.same_quietly")
    assert isinstance(fork, ChainRun)
    same(fork.result(PATIENCE_S).raise_for_status().final_output, AWKWARD)

    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert comparison.same, str(comparison)
    same(comparison.now.output, AWKWARD)


def test_what_raced_ends_in_the_recorded_order_with_the_recorded_chance_and_time(
    client: Client, tmp_path: Path
) -> None:
    run = client.submit_workflow("racers", {"file": str(tmp_path / "go")})
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the wait")
    assert run.signal("go", "signal") == "taken"
    until(
        lambda: any(
            name.endswith("2.same_quietly") and each.state == "done" for name, each in run.record().steps.items()
        ),
        "its step",
    )
    (tmp_path / "go").touch()
    output = run.result(PATIENCE_S).raise_for_status().final_output

    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert isinstance(output, list)
    assert output[:2] == ["signal", "racer"]
    assert (comparison.same, comparison.now.output) == (True, output), str(comparison)


def test_a_step_that_was_stopped_when_the_workflow_ended_is_not_called(client: Client, tmp_path: Path) -> None:
    run = client.submit_workflow("first", {"file": str(tmp_path / "go")})
    output = run.result(PATIENCE_S).raise_for_status().final_output
    (tmp_path / "go").touch()

    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert (comparison.same, comparison.now.output) == (True, output), str(comparison)


@pytest.mark.parametrize(("left", "waits"), [(3, 0), (0, 3)])
def test_rounds_and_repeated_signals_are_replayed(client: Client, left: int, waits: int) -> None:
    run = client.submit_workflow("rounds", {"left": left}) if left else client.submit_workflow("orders", {"until": "2"})
    for number in range(waits):
        run.signal("order", str(number))
    output = run.result(PATIENCE_S).raise_for_status().final_output

    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert (comparison.same, comparison.now.output) == (True, output), str(comparison)


@pytest.mark.parametrize("name", ["caught", "uncaught"])
def test_its_failures_are_those_that_are_recorded(client: Client, name: str) -> None:
    run = client.submit_workflow(name, {})
    run.result(PATIENCE_S)

    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert comparison.same, str(comparison)


def test_a_child_a_chain_a_tool_an_agent_and_an_approval_are_replayed(client: Client) -> None:
    runs = [client.submit_workflow("parent", {}), client.submit_workflow("approval", {})]
    until(lambda: any(step.state == "waiting_signal" for step in runs[1].record().steps.values()), "the wait")
    assert runs[1].signal("approve", "yes") == "taken"

    for run in runs:
        result = run.result(PATIENCE_S).raise_for_status()
        comparison = replay(json.loads("".join(run.export())), definitions=definitions())

        assert (comparison.same, comparison.now.output) == (True, result.final_output), str(comparison)


def test_changed_code_of_a_workflow_is_found(client: Client, tmp_path: Path) -> None:
    run = client.submit_workflow("row", {"steps": 3})
    run.result(PATIENCE_S)
    (tmp_path / "desk.py").write_text(
        "from cantata import Workflow, workflow\n\ndef add(a: int, b: int = 1) -> int:\n    return a + b\n\n"
        "@workflow\nasync def row(wf: Workflow, steps: int) -> int:\n    return await wf.call(add, 7)\n"
    )

    comparison = replay(json.loads("".join(run.export())), definitions=definitions(tmp_path))

    assert comparison.first is not None
    assert comparison.first.part == "arguments"
    assert comparison.first.now == {"args": [7], "kwargs": {}}


@pytest.mark.parametrize(
    ("code", "step", "recorded", "now"),
    [
        ("return await wf.call(add, 0)", "row/1.add", "workflow.call desk:add", None),
        (
            "return [await wf.call(add, number) for number in (0, 1, 2)][-1]",
            "row/2.add",
            None,
            "workflow.call desk:add",
        ),
        ("return 2", "row/0.add", "workflow.call desk:add", None),
        ("await wf.sleep(1)\n    return await wf.call(add, 0)", "row/0.add", "workflow.call desk:add", None),
    ],
    ids=["fewer", "more", "none", "other"],
)
def test_calls_that_are_not_made_any_more_or_are_new_are_found(
    client: Client, tmp_path: Path, code: str, step: str, recorded: str | None, now: str | None
) -> None:
    run = client.submit_workflow("row", {"steps": 2})
    run.result(PATIENCE_S)
    (tmp_path / "desk.py").write_text(
        "from cantata import Workflow, workflow\n\ndef add(a: int, b: int = 1) -> int:\n    return a + b\n\n"
        f"@workflow\nasync def row(wf: Workflow, steps: int) -> int:\n    {code}\n"
    )

    comparison = replay(json.loads("".join(run.export())), definitions=definitions(tmp_path))

    assert comparison.first is not None
    assert (comparison.first.step, comparison.first.part) == (step, "graph"), str(comparison)
    assert (comparison.first.recorded, comparison.first.now) == (recorded, now)


def test_code_that_gives_fewer_commands_goes_on_without_the_others(client: Client, tmp_path: Path) -> None:
    run = client.submit_workflow("fan", {"width": 3})
    run.result(PATIENCE_S)
    (tmp_path / "desk.py").write_text(
        "from cantata import Workflow, workflow\n\ndef add(a: int, b: int = 1) -> int:\n    return a + b\n\n"
        "@workflow\nasync def fan(wf: Workflow, width: int) -> int:\n    return await wf.call(add, 0)\n"
    )

    comparison = replay(json.loads("".join(run.export())), definitions=definitions(tmp_path))

    assert comparison.first is not None
    assert (comparison.first.step, comparison.first.part) == ("fan/1.add", "graph")
    assert (comparison.stopped, comparison.now.output) == ("", 1)


def test_a_workflow_that_waits_is_replayed_as_far_as_it_came(client: Client) -> None:
    run = client.submit_workflow("late_question", {})
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the wait")
    document = json.loads("".join(run.export()))
    run.cancel()

    comparison = replay(document, definitions=definitions())

    assert (comparison.same, comparison.stopped) == (True, "a step waits, and its end is not recorded"), str(comparison)
