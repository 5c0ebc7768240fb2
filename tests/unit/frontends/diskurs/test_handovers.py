"""What the steps of a conductor's conversation grow."""

from __future__ import annotations

from cantata.flows.definitions import Definitions
from cantata.flows.graph import RAW, Graph
from cantata.flows.turns.turn_plan import plan_turn
from cantata.flows.wire import TurnRequest
from cantata_frontends.diskurs import handovers
from cantata_frontends.diskurs.conversation_config import (
    CodeReference,
    ConversationAgent,
    ConversationConfig,
    ConversationTool,
)
from cantata_frontends.diskurs.handovers import AgentTurn

FORUM = ConversationConfig(
    first_contact="boss",
    agents={
        "boss": ConversationAgent(kind="conductor", llm="m", topics=["ann"], max_trials=2),
        "ann": ConversationAgent(
            kind="multistep", llm="m", topics=["boss"], tools=["add"], max_trials=2, max_reasoning_steps=3
        ),
        "code": ConversationAgent(kind="heuristic", topics=["boss"]),
    },
    tools={"add": ConversationTool(function=CodeReference(file="sums.py", name="add"))},
)


def kinds(graph: Graph) -> dict[str, str]:
    return {step.id: step.kind for step in graph.steps}


def test_a_turn_begins_with_one_step_of_a_tools_worker() -> None:
    graph = plan_turn(TurnRequest(text="hello"), Definitions(extension=handovers.extension_of(FORUM)))
    assert (kinds(graph), graph.terminals, graph.steps[0].queue) == ({"@open": "diskurs.open"}, ("@open",), "tools")
    assert graph.steps[0].reads == {"@text": "=@start"}


def test_a_hop_begins_as_its_agent_works() -> None:
    assert kinds(handovers.hand_over("boss", FORUM, number=1, before="@open")) == {"1.boss": "diskurs.visit"}
    assert kinds(handovers.hand_over("ann", FORUM, number=2, before="1.boss")) == {"2.ann": "diskurs.begin"}
    assert kinds(handovers.hand_over("code", FORUM, number=3, before="2.ann")) == {"3.code": "diskurs.heuristic"}


def test_a_reply_is_recorded_before_it_is_read() -> None:
    graph = handovers.ask(AgentTurn("ann", 2, "2.ann"), FORUM, before="2.ann")
    asking, reading = graph.steps
    assert (asking.id, asking.queue, asking.work, asking.expands) == ("2.ann/ask.1", "agents", "agents:ann", True)
    assert (reading.id, reading.queue, reading.reads["@reply"]) == ("2.ann/read.1", "tools", "2.ann/ask.1")
    assert graph.exit == reading.id
    assert asking.reads == {"@conversation": f"{RAW}2.ann", "@turn_start": f"{RAW}2.ann"}


def test_what_only_conductors_do_is_no_agents_work() -> None:
    asking, _ = handovers.ask(AgentTurn("boss", 1, "1.boss"), FORUM, before="1.boss").steps
    assert (asking.work, asking.expands) == ("conductors:boss", False)


def test_trials_and_steps_are_counted_apart() -> None:
    turn = AgentTurn("ann", 2, "2.ann")

    def after(turn: AgentTurn, *, is_valid: bool) -> AgentTurn | None:
        graph = handovers.ask_again(turn, FORUM, before="x", is_valid=is_valid)
        return AgentTurn.of(graph.steps[0].params) if graph else None

    second = after(turn, is_valid=False)
    assert second == AgentTurn("ann", 2, "2.ann", trial=2, step=1, asked=2)
    assert after(second, is_valid=False) is None
    third = after(second, is_valid=True)
    assert third == AgentTurn("ann", 2, "2.ann", trial=1, step=2, asked=3)
    assert after(AgentTurn("ann", 2, "2.ann", step=3), is_valid=True) is None
    assert (
        after(AgentTurn("boss", 1, "1.boss", step=2), is_valid=True) is None
    )  # a conductor has as many steps as trials


def test_the_parts_of_a_parallel_agent_are_joined() -> None:
    graph = handovers.run_branches(AgentTurn("ann", 2, "2.ann"), before="2.ann/branches", count=2)
    assert kinds(graph) == {
        "2.ann/branch.0": "diskurs.begin",
        "2.ann/branch.1": "diskurs.begin",
        "2.ann/join": "diskurs.join",
    }
    assert {(edge.source, edge.target) for edge in graph.edges} == {
        ("2.ann/branch.0", "2.ann/join"),
        ("2.ann/branch.1", "2.ann/join"),
    }
    assert graph.steps[-1].reads["@branch/1"] == "2.ann/branch.1"  # whatever has taken its place by then


def test_no_parts_are_joined_at_once() -> None:
    assert kinds(handovers.run_branches(AgentTurn("ann", 2, "2.ann"), before="x", count=0)) == {
        "2.ann/join": "diskurs.join"
    }


def test_a_plan_grows_a_step_for_each_of_its_own() -> None:
    plan = [
        {"step_id": "1", "function": "add", "parameters": {"a": 1}, "depends_on": []},
        {"step_id": "2", "function": "add", "parameters": {"a": "$1"}, "depends_on": ["1"]},
    ]
    graph = handovers.run_plan(AgentTurn("ann", 2, "2.ann", asked=4), plan, before="2.ann/read.4")  # type: ignore[arg-type]  # lists of JSON
    assert kinds(graph) == {
        "2.ann/plan.4/1": "diskurs.tool",
        "2.ann/plan.4/2": "diskurs.tool",
        "2.ann/plan.4": "diskurs.gather",
    }
    assert ("2.ann/plan.4/1", "2.ann/plan.4/2") in {(edge.source, edge.target) for edge in graph.edges}
    assert graph.steps[1].params["needs"] == {"1": "2.ann/plan.4/1"}
    assert {step.on_error for step in graph.steps[:2]} == {"skip"}
