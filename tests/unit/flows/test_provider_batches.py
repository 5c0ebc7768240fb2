"""The run of a provider's batch: which agents may be asked so, and its two steps."""

from __future__ import annotations

import pytest

from cantata.flows.definitions import Agent, Definitions, Tool
from cantata.flows.instructions import AgenticStep
from cantata.flows.provider_batches import COLLECT, fault_of_agent, plan
from cantata.flows.wire import ProviderBatchRequest

AGENTS = {
    "one": Agent(instructions=["label {input}"]),
    "two": Agent(instructions=["first {input}", "second {input}"]),
    "tools": Agent(tools=["add"]),
    "agentic": Agent(instructions=[AgenticStep(objective="do it")]),
    "json": Agent(dialect="json"),
    "history": Agent(full_history=True),
}
DEFINITIONS = Definitions(agents=AGENTS, tools={"add": Tool(function="shop:add")})


@pytest.mark.parametrize("name", AGENTS)
def test_only_an_agent_of_one_model_call_is_asked_by_a_batch(name: str) -> None:
    fault = fault_of_agent(name, DEFINITIONS)

    assert (fault is None) == (name == "one")
    assert fault is None or repr(name) in fault


def test_the_answers_are_collected_behind_the_creation_on_the_agents_queue() -> None:
    graph = plan(
        ProviderBatchRequest(text="rows", agent="one"),
        DEFINITIONS.model_copy(update={"agents": {"one": Agent(queue="gpu")}}),
    )

    assert {step.queue for step in graph.steps} == {"gpu"}
    assert [(edge.source, edge.target) for edge in graph.edges] == [("create", "collect")]
    assert graph.terminals == (COLLECT,)


def test_the_run_that_cancels_a_batch_has_one_step() -> None:
    graph = plan(ProviderBatchRequest(text="cancel", agent="one", cancels="run"), DEFINITIONS)

    assert [(step.id, step.kind) for step in graph.steps] == [("cancel", "batch.cancel")]
