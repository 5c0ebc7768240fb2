"""Steps that begin workflows in Python: of a turn, and of a model's call."""

from __future__ import annotations

from cantata.flows.chains.expand import plan
from cantata.flows.definitions import Definitions, PythonWorkflow, Tool
from cantata.flows.turns.agent_steps import tool_step
from cantata.flows.turns.turn_plan import plan_turn
from cantata.flows.wire import ChainNode, ChainRequest, TurnRequest

DEFINITIONS = Definitions(
    workflows={"desk": PythonWorkflow(function="desk:desk"), "both": PythonWorkflow(function="desk:both")}
)


def test_a_turn_gives_its_text() -> None:
    graph = plan_turn(TurnRequest(text="hello", workflow="desk"), DEFINITIONS)

    (step,) = graph.steps
    assert (step.id, step.kind, step.params["is_turn"]) == ("desk", "workflow.advance", True)
    assert graph.terminals == ("desk",)


def test_a_call_of_a_model_does_not_fail_its_turn() -> None:
    step = tool_step("a/t0", "desk", {"question": "why?"}, DEFINITIONS)

    assert (step.kind, step.on_error, step.expands) == ("workflow.advance", "skip", True)
    assert step.params["input"] == {"question": "why?"}


def test_the_queue_of_its_entry_serves_each_way_to_begin_it() -> None:
    own = Definitions(workflows={"desk": PythonWorkflow(function="desk:desk", queue="workflows")})
    request = ChainRequest(nodes=[ChainNode(node_id="a", kind="workflow", name="desk")], entry_node="a")

    of_a_turn, of_a_node = plan_turn(TurnRequest(text="hello", workflow="desk"), own), plan(request, own)

    assert [of_a_turn.steps[0].queue, of_a_node.steps[0].queue, tool_step("a/t0", "desk", {}, own).queue] == [
        "workflows"
    ] * 3
    assert plan(request, DEFINITIONS).steps[0].queue == "tools"


def test_a_tool_wins_over_a_workflow_of_its_name() -> None:
    definitions = DEFINITIONS.model_copy(update={"tools": {"both": Tool(function="desk:tool")}})

    assert tool_step("a/t0", "both", {}, definitions).kind != "workflow.advance"
