"""Plans as people see them: the graph, and the canvases."""

from __future__ import annotations

from cantata.engine.dispatch.celery_app import make_app
from cantata.flows.canvas import MessageHead
from cantata.flows.chains import expand
from cantata.flows.definitions import Agent, Chain, Defaults, Definitions, Tool
from cantata.flows.graph import Graph
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.surfaces.cli.views.canvas_tree import canvas_tree, canvases_of
from cantata.surfaces.cli.views.plan_tree import TreeLine, draw_tree, graph_tree
from cantata.values import JsonValue

TWICE = Definitions(
    tools={"t": Tool(function="json:dumps")},
    agents={"a": Agent(), "b": Agent(instructions=["{input}", "again: {input}"])},
    chains={
        "inner": Chain.model_validate({"entry_node": "x", "nodes": [{"node_id": "x", "kind": "agent", "name": "b"}]})
    },
    defaults=Defaults(agent="a"),
)


def graph_of(*nodes: dict[str, JsonValue]) -> Graph:
    return expand.plan(ChainRequest.model_validate({"nodes": list(nodes), "entry_node": nodes[0]["node_id"]}), TWICE)


def canvas_of(graph: Graph) -> list[TreeLine]:
    return canvas_tree(canvases_of(graph, MessageHead(make_app("redis://here"), "RUN")))


def texts(lines: list[TreeLine]) -> list[str]:
    return [" ".join(line.split()) for line in draw_tree(lines)]


def test_what_is_known_to_grow_is_drawn_under_its_grower() -> None:
    tree = texts(graph_tree(graph_of({"node_id": "g", "kind": "chain", "name": "inner"}), TWICE))

    assert [line.split("─ ")[1].split()[0] for line in tree] == ["g", "g/x", "g/x/@1", "g/x/@2", "g/@end"]


def test_a_row_of_agents_is_one_chain_and_a_fan_that_meets_a_chord() -> None:
    row: list[dict[str, JsonValue]] = [
        {"node_id": "p", "kind": "agent", "name": "a", "next_node": "q"},
        {"node_id": "q", "kind": "agent", "name": "a"},
    ]
    fan: list[dict[str, JsonValue]] = [
        {"node_id": "p", "kind": "agent", "name": "a"},
        {"node_id": "q", "kind": "agent", "name": "a"},
        {"node_id": "j", "kind": "agent", "name": "a", "deps": ["p", "q"]},
    ]
    decision: dict[str, JsonValue] = {"node_id": "s", "kind": "branch", "condition": "`true`", "true_node": ["p", "q"]}
    step: dict[str, JsonValue] = {"node_id": "s", "kind": "tool", "name": "t", "next_node": ["p", "q"]}

    assert texts(canvas_of(graph_of(*row)))[0] == "└─ chain"
    assert texts(canvas_of(graph_of(decision, *fan)))[:3] == [
        "├─ s in place, without a message",
        "└─ chord",
        "├─ group",
    ]
    assert [line.split()[1] for line in texts(canvas_of(graph_of(step, *fan)))] == [
        "tool.call",
        "group",
        "├─",
        "└─",
        "agent.turn",
    ], "whoever did s has no graph at hand"


def test_each_step_is_in_one_canvas() -> None:
    graph = turn_plan.plan_turn(TurnRequest(text="x", agent="b"), TWICE)

    assert len([line for line in texts(canvas_of(graph)) if " b " in f"{line} "]) == 1
