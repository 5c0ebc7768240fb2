"""The fixture `cantata_stack` in this project: faults, what a flow must keep, and what is separate between two tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions, PythonWorkflow, Tool
from cantata.testing import KillableStack, ScriptedModels
from cantata.testing.killable_stack import Result

TOOLS = """
from pathlib import Path

from cantata import workflow

CALLS = Path(__file__).with_name("calls.txt")


def count() -> int:
    with CALLS.open("a") as file:
        file.write("called\\n")
    return len(CALLS.read_text().split())


@workflow
async def expense(wf, item):
    if await wf.wait("approve", timeout_s=86_400, default=False):
        await wf.options(at_most_once=True).call(count)
    return item


@workflow
async def nap(wf):
    await wf.sleep(86_400)
    return "awake"
"""
ASK = {"entry_node": "ask", "nodes": [{"node_id": "ask", "kind": "wait"}]}
CHAIN = {"entry_node": "count", "nodes": [{"node_id": "count", "kind": "tool", "name": "count"}]}


@pytest.fixture
def definitions(tmp_path: Path) -> Definitions:
    (tmp_path / "count_tools.py").write_text(TOOLS)
    workflows = {name: PythonWorkflow(function=f"count_tools:{name}") for name in ("expense", "nap")}
    return Definitions(folder=str(tmp_path), tools={"count": Tool(function="count_tools:count")}, workflows=workflows)


@pytest.mark.parametrize("times", [1, 2])
def test_each_test_begins_without_runs(cantata_stack: KillableStack, definitions: Definitions, times: int) -> None:
    client = cantata_stack.client(definitions)
    assert client.runs() == []

    assert cantata_stack.submit(CHAIN, definitions=definitions).result(30).final_output == 1

    assert len(client.runs()) == 1


def test_an_unknown_point_is_named_with_the_nearest(cantata_stack: KillableStack) -> None:
    with (
        pytest.raises(ConfigError, match=r"no fault point 'commited'; did you mean 'committed'\?.*FAULT_POINTS"),
        cantata_stack.kill_at("commited"),
    ):
        pass


def test_a_fault_that_does_not_happen_is_disarmed_at_the_end_of_its_block(
    cantata_stack: KillableStack, definitions: Definitions
) -> None:
    with cantata_stack.kill_at("tool-finished") as fault:
        assert not fault.happened

    assert cantata_stack.submit(CHAIN, definitions=definitions).result(30).status == "succeeded"


def test_an_output_that_a_kill_changes_fails_the_test(cantata_stack: KillableStack, definitions: Definitions) -> None:
    calls = Path(str(definitions.folder), "calls.txt")

    def before() -> None:
        calls.unlink(missing_ok=True)

    cantata_stack.survives_kills(CHAIN, at="tool-started", before=before, definitions=definitions)
    with pytest.raises(
        AssertionError,
        match=r"killed at 'tool-finished' \(time 1 .* ended with \('succeeded', 2\); undisturbed: \('succeeded', 1\)",
    ):
        cantata_stack.survives_kills(CHAIN, at="tool-finished", before=before, definitions=definitions)


def test_the_test_chooses_what_must_be_equal(cantata_stack: KillableStack, definitions: Definitions) -> None:
    def status(result: Result) -> str:
        return result.status

    cantata_stack.survives_kills(CHAIN, at="tool-finished", outcome=status, definitions=definitions)


def test_a_workflow_is_submitted_by_its_name_or_its_function(
    cantata_stack: KillableStack, definitions: Definitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("count_tools").expense
    monkeypatch.delitem(sys.modules, "count_tools")
    for flow in ("expense", function):
        run = cantata_stack.submit(flow, {"item": "tea"}, definitions=definitions)
        cantata_stack.until_waiting(run)
        cantata_stack.skip(days=1)
        assert run.result(30).final_output == "tea"


def test_a_step_that_runs_at_most_once_needs_a_signal_behind_a_kill(
    cantata_stack: KillableStack, definitions: Definitions
) -> None:
    calls = Path(str(definitions.folder), "calls.txt")

    def before() -> None:
        calls.unlink(missing_ok=True)

    def settle() -> int:
        """Do what a person does: look, and call where nobody did."""
        if not called():
            calls.write_text("called\n")
        return 1

    def called() -> list[str]:
        return calls.read_text().split() if calls.exists() else []

    def survive(**signals: Any) -> None:
        cantata_stack.survives_kills(
            "expense",
            {"item": "tea"},
            at="tool-finished",
            before=before,
            effects=called,
            definitions=definitions,
            signals=signals,
        )

    why = r"the run waits for a person: step 'expense/1\.count' runs at most once and its .*;"
    fault = rf"killed at 'tool-finished' \(time 1 that .*\) {why}"
    with pytest.raises(AssertionError, match=rf"{fault} give one in signals=\{{'1\.count': \.\.\.\}}"):
        survive(approve=True)
    survive(approve=True, **{"1.count": settle})
    survive(approve=True, **{"1.count": 1})


def test_a_run_that_does_not_end_is_told_with_the_limit_of_the_test(
    cantata_stack: KillableStack, definitions: Definitions
) -> None:
    with pytest.raises(TimeoutError, match=r"^run \S+ is not over after 0\.3 s; it goes on$"):
        cantata_stack.survives_kills(ASK, at="begun", definitions=definitions, timeout_s=0.3)


def test_a_point_that_is_not_reached_skips_its_test(cantata_stack: KillableStack, definitions: Definitions) -> None:
    with pytest.raises(pytest.skip.Exception, match="the flow does not reach 'model-sent'"):
        cantata_stack.survives_kills(
            CHAIN, at="model-sent", outcome=lambda result: result.status, definitions=definitions
        )


def test_a_sleep_is_waited_for_and_skipped_when_nothing_else_is_left(
    cantata_stack: KillableStack, definitions: Definitions
) -> None:
    run = cantata_stack.submit("nap", definitions=definitions)
    cantata_stack.until_waiting(run)
    assert run.status() == "running"
    cantata_stack.skip(days=1)
    assert run.result(30).final_output == "awake"

    with pytest.raises(pytest.skip.Exception):
        cantata_stack.survives_kills("nap", at="model-sent", definitions=definitions)


@pytest.mark.slow("the worker stands still for ten seconds, and its lease runs out after five")
def test_the_step_of_a_frozen_worker_is_done_by_another(cantata_stack: KillableStack, definitions: Definitions) -> None:
    with cantata_stack.freeze_at("tool-started") as fault:
        result = cantata_stack.submit(CHAIN, definitions=definitions).result(60)

        assert fault.happened
    assert result.status == "succeeded"


def test_time_is_skipped_in_units(cantata_stack: KillableStack) -> None:
    chain = {"entry_node": "ask", "nodes": [{"node_id": "ask", "kind": "wait", "timeout": 90_000, "default": "late"}]}
    run = cantata_stack.submit(chain, definitions=Definitions())
    cantata_stack.until_waiting(run)

    cantata_stack.skip(days=1, minutes=50)
    assert run.status() == "waiting"
    cantata_stack.skip(601)

    assert run.result(30).outputs == {"ask": "late"}
    with pytest.raises(TimeoutError, match=r"no step of run .* waits for a signal or sleeps; the run is succeeded"):
        cantata_stack.until_waiting(run)


def test_a_scripted_model_begins_without_rules_and_requests(scripted_model: ScriptedModels) -> None:
    scripted_model.receive({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, None)
    assert [request["model"] for request in scripted_model.requests] == ["m"]

    scripted_model.clear()

    assert scripted_model.requests == []
