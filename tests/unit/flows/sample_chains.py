"""Nodes of chains, definitions that they may name, and what becomes of them: faults, a plan, a run."""

from __future__ import annotations

from collections.abc import Mapping

from cantata.flows.chains import checks, expand
from cantata.flows.definitions import Agent, Chain, Command, Definitions, McpServer, Team, Tool
from cantata.flows.graph import Graph, Step
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue
from tests.unit.flows.interpreter import Run, ToolFailure
from tests.unit.flows.interpreter import Tool as Function

FILES = Tool(mcp=McpServer(command=["my-mcp-server", "--stdio"]))
ONCE = Tool(function="m:pay", at_most_once=True)
DEFINITIONS = Definitions(
    tools={
        "t": Tool(function="m:t"),
        "slow": Tool(function="m:slow", queue="gpu", timeout_s=9, retries=2, cheap=False),
        "files": FILES,
        "once": ONCE,
    },
    skills={
        "s": Tool(function="m:s"),
        "web.pages": Tool(mcp=McpServer(url="http://localhost/mcp"), queue="gpu", retries=2),
    },
    commands={"ls": Command(command=["ls"], timeout_s=7)},
    agents={"one": Agent(queue="llm", retries=5, timeout_s=8), "many": Agent(instructions=["a", "b"])},
    teams={"team": Team(mode="pipeline", agents=["one"])},
    chains={"sub": Chain(entry_node="a", nodes=[ChainNode(node_id="a", kind="tool", name="t", input_map={"x": "n"})])},
)


def tool(node_id: str, **fields: object) -> ChainNode:
    return ChainNode.model_validate({"kind": "tool", "name": "t", **fields, "node_id": node_id})


def branch(node_id: str, condition: str, **fields: object) -> ChainNode:
    return tool(node_id, kind="branch", name="", condition=condition, **fields)


def mapping(node_id: str, items: str, body: str, **fields: object) -> ChainNode:
    return tool(node_id, kind="map", name="", items_path=items, map_node=body, **fields)


def request(*nodes: ChainNode, **initial: JsonValue) -> ChainRequest:
    return ChainRequest(nodes=list(nodes), entry_node=nodes[0].node_id, initial_input=initial)


def faults(
    *nodes: ChainNode, entry: str | None = None, definitions: Definitions = DEFINITIONS
) -> tuple[list[str], str]:
    asked = request(*nodes) if entry is None else request(*nodes).model_copy(update={"entry_node": entry})
    found, code = checks.check(asked, definitions, is_draft=True)
    return [str(fault) for fault in found], code


def plan(*nodes: ChainNode, **initial: JsonValue) -> Graph:
    return expand.plan(request(*nodes, **initial), DEFINITIONS)


def step(graph: Graph, step_id: str) -> Step:
    return next(step for step in graph.steps if step.id == step_id)


def edges(graph: Graph) -> set[str]:
    """Edges in short: `a -> b`, with the label if it is not `done`, and in brackets if it only orders."""
    shown = set()
    for edge in graph.edges:
        text = f"{edge.source} -> {edge.target}{'' if edge.label == 'done' else f' {edge.label}'}"
        shown.add(text if edge.wakes else f"({text})")
    return shown


def play(
    *nodes: ChainNode,
    tools: Mapping[str, Function] | None = None,
    definitions: Definitions = DEFINITIONS,
    **initial: JsonValue,
) -> Run:
    return Run(request(*nodes, **initial), definitions, tools or {}).play()


def fails(given: dict[str, JsonValue]) -> JsonValue:
    raise ToolFailure


def counter(given: dict[str, JsonValue]) -> JsonValue:
    """Counts on from what it is given."""
    n = given.get("n") or 0
    assert isinstance(n, int)
    return {"n": n + 1}
