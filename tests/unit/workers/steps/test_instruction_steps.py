"""Functions and chainbreakers are given what they have parameters for, and the context of the step wherever it stands."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cantata import ToolContext
from cantata.flows.definitions import Agent, Definitions, Team, TeamRule
from cantata.flows.graph import Outcome, Spec
from cantata.flows.instructions import FunctionStep
from cantata.ledger.records import Begun
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps.instruction_steps import agent_break, agent_function
from cantata_workers.steps.routing import agent_by_rule

Triple = tuple[bool, str, str]


def first(context: ToolContext, text: str) -> str:
    return f"{context.run_id} {text}"


def between(limit: int, context: ToolContext, text: str) -> str:
    return f"{context.run_id} {text[:limit]}"


def only(context: ToolContext) -> str:
    return context.run_id


def by_name(text: str, *, context: ToolContext, limit: int = 2) -> str:
    return f"{context.run_id} {text[:limit]}"


def stop_first(context: ToolContext, step: int, output: str) -> Triple:
    return True, context.run_id, output.upper()


def stop_after_a_gap(
    step: int, output: str, info: dict[str, Any] | None = None, context: ToolContext | None = None
) -> Triple:
    return True, "", f"{info and info['type']} {context and context.run_id}"


def stop_with_a_limit(step: int, output: str, *, limit: int = 1) -> Triple:
    return step >= limit, "", output.upper()


def stop_with_any(*given: Any) -> Triple:
    return True, "", str(len(given))


def choose(context: ToolContext, text: str) -> str | None:
    return text if context.run_id else None


def step_of(agent: Agent) -> StepContext:
    definitions = Definitions(agents={"a": agent})
    runs = SimpleNamespace(append_event=lambda *given, **more: None)
    ledger = SimpleNamespace(runs=runs, redis=None, keys=None)
    process = SimpleNamespace(definitions=lambda run_id, digest: definitions, ledger=ledger)
    spec = Spec(kind="agent.function", params={"agent": "a", "turn": 0})
    return StepContext(
        Begun("run", "step", 1, "worker", spec, None, 0, {"@text": "ann", "@input": "ann"}, ""), cast(Process, process)
    )


def named(function: Any) -> FunctionStep:
    found = partial(function)
    return FunctionStep(function=f"{__name__}:{found.func.__name__}", args=list(found.args))


@pytest.mark.parametrize(
    ("function", "output"), [(first, "run ann"), (partial(between, 1), "run a"), (only, "run"), (by_name, "run an")]
)
def test_a_function_is_given_its_context_wherever_that_stands(function: Any, output: str) -> None:
    assert agent_function(step_of(Agent(instructions=[named(function)]))).output == output


@pytest.mark.parametrize(
    ("breaker", "output"),
    [(stop_first, "ANN"), (stop_after_a_gap, "function run"), (stop_with_a_limit, "ANN"), (stop_with_any, "3")],
)
def test_a_chainbreaker_is_called_by_the_parameters_it_takes_by_position(breaker: Any, output: str) -> None:
    outcome = agent_break(step_of(Agent(instructions=[named(first)], chainbreakers=[named(breaker)])))

    assert isinstance(outcome, Outcome)
    assert (outcome.output, outcome.warnings) == (output, ())


def test_a_rule_may_have_the_context_first() -> None:
    warnings: list[str] = []
    team = Team(
        mode="router",
        agents=["ann"],
        router={"function": f"{__name__}:choose"},  # type: ignore[arg-type]
        rules=[TeamRule(function=f"{__name__}:choose")],
    )

    assert (agent_by_rule(step_of(Agent(instructions=["x"])), team, 0, "ann", warnings), warnings) == ("ann", [])
