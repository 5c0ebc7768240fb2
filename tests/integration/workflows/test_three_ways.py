"""A workflow gives the same inline, on a stack, replayed from each part of its history, and replayed from its recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cantata.client.client import Client
from cantata.flows.graph import STEP_OVER
from cantata.flows.wire import ChainResponse
from cantata.flows.workflows import expansion
from cantata.flows.workflows.history import Activation, outcome_of
from cantata.ledger.runs.results import is_over
from cantata.testing import replay, run_inline
from cantata.values import JsonValue
from tests.examples import examples
from tests.integration.workflows import plans
from tests.integration.workflows.conftest import PATIENCE_S
from tests.integration.workflows.plans import definitions
from tests.integration.workflows.replayer import HISTORIES, REPLAYED, History, replay_each_part
from tests.waiting import until

WAITING = ("waiting", "waiting_signal")  # states in which nothing happens without a signal, or before time has passed
SIGNALS: Mapping[str, JsonValue] = {
    **{f"{plans.SIGNAL}-{number}": number for number in range(10)},
    "approve": True,
    "order": "end",
}
NAMED: Mapping[str, tuple[str, Any]] = {
    "row": ("row", {"steps": 5}),
    "gather": ("fan", {"width": 9}),
    "task groups": ("asyncio_fan", {}),
    "race": ("planned", {"plan": [{"race": [{"call": 1}, {"call": 2}]}, {"race": []}, {"call": 3}]}),
    "sets of tasks and futures": ("planned", {"plan": [{"crowd": [1, 2, 3, 4, 5]}]}),
    "a race of callbacks": ("calls_back", {}),
    "timeout": ("planned", {"plan": [{"hurry": 2}, {"tasks": [[{"hurry": 1}], [{"call": 1}]]}]}),
    "a gather that is given up": ("hurried_gather", {}),
    "except": ("caught", {}),
    "finally": ("tidy", {}),
    "all is caught": ("swallows", {}),
    "a failure": ("uncaught", {}),
    "a failure in a task group": ("group_fails", {}),
    "an error of its own": ("broken", {"order": {"item": "pen"}}),
    "a wait with a signal": ("approval", {}),
    "a wait that has no default": ("late_question", {}),
    "a wait that takes its default": ("planned", {"plan": [{"ask": 4}, {"tasks": [[{"ask": 5}], [{"wait": 1}]]}]}),
    "signals": ("orders", {"until": "end"}),
    "sleep": ("sleeper", {}),
    "children": ("parent", {}),
    "a loop with branches": ("branches", {"until": 11}),
    "queues and locks between tasks": ("synchronized", {}),
    "patched": ("planned", {"plan": [{"patch": 1}, {"call": 1}, {"patch": 2}, {"patch": 1}]}),
    "values changed in place": ("changes_values", {"items": [1, 2]}),
}


@pytest.mark.parametrize("named", NAMED)
def test_a_named_workflow(client: Client, named: str) -> None:
    check(client, *NAMED[named])


def test_another_process_replays_the_same(client: Client) -> None:
    client = client.with_definitions(definitions())
    runs = [(name, client.submit_workflow(name, given)) for name, given in NAMED.values()]
    histories = []
    for name, run in runs:
        drive(client, run, SIGNALS)
        run.result(PATIENCE_S)
        histories.append(history_of(client, run.run_id, name))

    command = [sys.executable, "-m", "tests.integration.workflows.replayer"]
    other = {**os.environ, "PYTHONHASHSEED": "17"}
    told = subprocess.run(command, input=HISTORIES.dump_json(histories), env=other, capture_output=True, check=False)

    assert told.returncode == 0, told.stderr.decode()
    replayed = REPLAYED.validate_json(told.stdout)
    assert replayed == [replay_each_part(each) for each in histories]
    assert [each.activations for each in replayed] == [each.activations for each in histories]


@pytest.mark.slow("with all of its examples, some hundred runs")
@settings(examples(30), deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(plan=plans.plans())
def test_planned_workflows(client: Client, plan: list[dict[str, Any]]) -> None:
    check(client, "planned", {"plan": plan})


def check(client: Client, name: str, given: Mapping[str, Any]) -> None:
    """Run a workflow in these ways, and compare."""
    node = {"node_id": name, "kind": "workflow", "name": name, "input": dict(given)}
    inline = run_inline(
        {"nodes": [node], "entry_node": name, "timeout": 86400.0}, definitions=definitions(), signals=SIGNALS
    )

    client = client.with_definitions(definitions())
    run = client.submit_workflow(name, given)
    drive(client, run, SIGNALS)
    on_stack = run.result(PATIENCE_S)

    assert ending(on_stack) == ending(inline)
    history = history_of(client, run.run_id, name)
    replayed = replay_each_part(history)
    assert replayed.activations == history.activations
    assert replayed.output == on_stack.final_output
    assert replayed.fault in ending(on_stack)[2]
    assert bool(replayed.fault) != on_stack.success
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
        values = {
            step_id: value for step_id in waiting for name, value in signals.items() if step_id.endswith(f"/{name}")
        }
        for step_id, value in values.items():
            run.signal(step_id, value)
        if waiting and not values and all(step.state in (*STEP_OVER, *WAITING) for step in steps.values()):
            client.stack.skip(3600)  # type: ignore[attr-defined]
        return False

    until(go_on, f"the end of {run.run_id}", PATIENCE_S)


def history_of(client: Client, run_id: str, name: str) -> History:
    """What is recorded of a workflow that is over."""
    reader = client.ledger.reader
    steps = reader.read(run_id).steps
    ids = [name, *(each for number in range(1, len(steps)) if (each := expansion.advance_id(name, number)) in steps)]
    activations = [Activation.model_validate(steps[each].output) for each in ids[:-1]]
    commands = [command for activation in activations for command in activation.commands]
    found = reader.outcomes(run_id, [expansion.step_id(name, command) for command in commands])
    outcomes = {index: outcome_of(*each) for index, each in enumerate(found) if each[0] in STEP_OVER}
    known = {index for activation in activations for index in activation.received}
    last = tuple(index for index, each in enumerate(found) if each[0] in ("done", "failed") and index not in known)
    given = cast("dict[str, JsonValue]", steps[name].spec.params.get("input", {}))
    return History(
        run_id=run_id,
        name=name,
        given=given,
        activations=tuple(activations),
        outcomes=outcomes,
        ended_at=time.time(),
        last=last,
    )
