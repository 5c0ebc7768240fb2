"""Recordings of workflows in Python are replayed: their functions are not called again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.testing import replay
from tests.integration.workflows.conftest import PATIENCE_S, definitions
from tests.waiting import until


@pytest.mark.parametrize(
    ("name", "given", "output"),
    [
        ("row", {"steps": 5}, 5),
        ("fan", {"width": 20}, list(range(1, 21))),
        ("asyncio_pair", {}, [1, 2, 3, 4, 5]),
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
