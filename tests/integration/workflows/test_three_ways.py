"""A workflow gives the same inline, on a stack, replayed from each part of its history, and replayed from its recording."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cantata.client.client import Client
from cantata.errors import StepError
from cantata.models.definitions import Definitions, PythonWorkflow
from cantata.models.graph import STEP_OVER
from cantata.models.wire import ChainResponse
from cantata.runs.results import is_over
from cantata.state.ledger.records import StepRecord
from cantata.testing import replay, run_inline
from cantata.workers.steps.workflow_steps import outcome_of
from cantata.workers.tools import functions
from cantata.workflows import expansion
from cantata.workflows.api import Workflow
from cantata.workflows.history import Activation
from cantata.workflows.replay import Advance, Replay, arguments_of
from tests.examples import examples
from tests.integration.workflows import conftest, plans
from tests.integration.workflows.conftest import PATIENCE_S
from tests.waiting import until

WAITING = ("waiting", "waiting_signal")  # states in which nothing happens without a signal, or before time has passed
NAMED: Mapping[str, Any] = {
    "row": {"steps": 5},
    "fan": {"width": 9},
    "asyncio_fan": {},
    "caught": {},
    "uncaught": {},
    "broken": {"order": {"item": "pen"}},
    "approval": {},
    "sleeper": {},
    "parent": {},
    "synchronized": {},
    "hurried_gather": {},
    "group_fails": {},
}


def definitions() -> Definitions:
    """The workflows of the desk, and the planned one."""
    own = conftest.definitions()
    planned = PythonWorkflow(function="tests.integration.workflows.plans:planned")
    return own.model_copy(update={"workflows": {**own.workflows, "planned": planned}})


@pytest.mark.parametrize("name", NAMED)
def test_a_named_workflow(client: Client, name: str) -> None:
    check(client, name, NAMED[name])


@settings(examples(100), deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(plan=plans.plans())
def test_planned_workflows(client: Client, plan: list[dict[str, Any]]) -> None:
    check(client, "planned", {"plan": plan})


def check(client: Client, name: str, given: Mapping[str, Any]) -> None:
    """Run a workflow in these ways, and compare."""
    node = {"node_id": name, "kind": "workflow", "name": name, "input": dict(given)}
    signals = {f"{plans.SIGNAL}-{number}": number for number in range(10)} | {"approve": True}
    inline = run_inline({"nodes": [node], "entry_node": name, "timeout": 86400.0}, definitions=definitions(), signals=signals)

    client = client.with_definitions(definitions())
    run = client.submit_workflow(name, given)
    drive(client, run, signals)
    on_stack = run.result(PATIENCE_S)

    assert ending(on_stack) == ending(inline)
    replay_each_part(client, run.run_id, name, on_stack)
    if on_stack.success:  # the last part of one that failed is not recorded, so its outcomes come as they can
        comparison = replay(json.loads("".join(run.export())), definitions=definitions())
        assert (comparison.same, comparison.now.output) == (True, on_stack.final_output), str(comparison)


def ending(response: ChainResponse) -> tuple[bool, Any, str]:
    """What a run gave."""
    return response.success, response.final_output, response.error.message if response.error else ""


def drive(client: Client, run: Any, signals: Mapping[str, Any]) -> None:
    """Signal what waits; when nothing else can happen, skip time."""

    def go_on() -> bool:
        steps = run.record(()).steps
        if is_over(run.status()):
            return True
        waiting = [step_id for step_id, step in steps.items() if step.state == "waiting_signal"]
        values = {step_id: value for step_id in waiting for name, value in signals.items() if step_id.endswith(f"/{name}")}
        for step_id, value in values.items():
            run.signal(step_id, value)
        if waiting and not values and all(step.state in (*STEP_OVER, *WAITING) for step in steps.values()):
            client.stack.skip(3600)  # type: ignore[attr-defined]
        return False

    until(go_on, f"the end of {run.run_id}", PATIENCE_S)


def replay_each_part(client: Client, run_id: str, name: str, response: ChainResponse) -> None:
    """Replay each part of a workflow's history: it gives the activation that is recorded next, and at the end the result."""
    reader, function = client.ledger.reader, functions.load(definitions().workflows[name].function, str(conftest.HERE))
    steps = reader.read(run_id).steps
    ids = [name, *(each for number in range(1, len(steps)) if (each := expansion.advance_id(name, number)) in steps)]
    history = [Activation.model_validate(steps[each].output) for each in ids[:-1]]
    commands = [command for activation in history for command in activation.commands]
    found = reader.outcomes(run_id, [expansion.step_id(name, command) for command in commands])
    outcomes = {index: outcome_of(*each) for index, each in enumerate(found) if each[0] in STEP_OVER}
    known = {index for activation in history for index in activation.received}
    last = [index for index, each in enumerate(found) if each[0] in ("done", "failed") and index not in known]

    def advance(number: int, at: float, received: list[int], given: Mapping[str, Any]) -> Advance:
        replay = Replay(run_id, client.definitions, history[:number], outcomes, name)
        arguments = arguments_of(function, history[0].input if history else given)
        return replay.run(lambda: function(Workflow(replay), **arguments), at=at, received=received, given=given)

    for number, activation in enumerate(history):
        assert advance(number, activation.at, list(activation.received), activation.input).activation == activation
    try:
        output, fault = advance(len(history), time.time(), last, given_to(steps[name])).output, ""
    except StepError as error:
        output, fault = None, str(error)
    assert (output, fault in ending(response)[2]) == (response.final_output, True)


def given_to(step: StepRecord) -> Mapping[str, Any]:
    """The input of a workflow's step."""
    return cast("Mapping[str, Any]", step.spec.params.get("input", {}))
