"""The steps that nodes become, by kind."""

from __future__ import annotations

import pytest

from cantata.flows.chains import expand, steps_of_nodes
from cantata.flows.definitions import Agent, Defaults, Definitions, History, Tool
from cantata.flows.instructions import NestedStep
from cantata.flows.turns.agent_steps import expand_agent
from cantata.flows.turns.history import MAX_HISTORY_TOKENS
from cantata.flows.wire import ChainNode
from tests.unit.flows.sample_chains import DEFINITIONS, mapping, plan, request, step, tool


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (tool("a"), {"kind": "tool.call", "queue": "tools", "work": "tools:t", "params": {"section": "tools", "tool": "t"}}),
        (tool("a", input={"x": 1}), {"params": {"section": "tools", "tool": "t", "input": {"x": 1}}}),
        (tool("a", name="slow"), {"queue": "gpu", "timeout_s": 9, "retries": 2, "cheap": False}),
        (tool("a", name="slow", retry=4, timeout=1), {"timeout_s": 1, "retries": 4}),
        (tool("a", name="once", retry=4), {"at_most_once": True, "retries": 0}),
        (tool("a", kind="skill", name="s"), {"kind": "tool.call", "work": "skills:s", "params": {"section": "skills", "tool": "s"}}),
        (tool("a", name="files.read", input={"x": 1}), {"kind": "mcp.call", "queue": "agents", "work": "tools:files.read", "retries": 0}),
        (tool("a", name="files.read"), {"params": {"section": "tools", "tool": "files", "method": "read"}}),
        (tool("a", name="files.read.all", timeout=2, retry=1), {"timeout_s": 2, "retries": 1, "work": "tools:files.read.all"}),
        (tool("a", kind="skill", name="web.pages.get"), {"kind": "mcp.call", "queue": "gpu", "retries": 2}),
        (tool("a", kind="skill", name="web.pages.get"), {"params": {"section": "skills", "tool": "web.pages", "method": "get"}}),
        (tool("a", kind="agent", name="one"), {"kind": "agent.turn", "queue": "llm", "work": "agents:one", "retries": 5}),
        (tool("a", kind="agent", name="one"), {"timeout_s": None}),
        (tool("a", kind="skill", name="one", input_map={"text": "q"}), {"params": {"agent": "one", "turn": 0, "map": {"text": "q"}}}),
        (tool("a", kind="agent", name="many"), {"kind": "agent.run", "decides": True, "expands": True, "params": {"agent": "many"}}),
        (tool("a", kind="agent", name="team"), {"kind": "team.run", "decides": True, "expands": True, "params": {"team": "team"}}),
        (tool("a", kind="chain", name="sub"), {"kind": "chain.run", "decides": True, "expands": True, "params": {"chain": "sub"}}),
        (tool("a", kind="skill", name="sub"), {"kind": "chain.run", "work": "chains:sub"}),
        (tool("a", kind="proc", name="ls"), {"kind": "proc.run", "queue": "tools", "timeout_s": 7, "params": {"command": "ls"}}),
        (tool("a", kind="wait", name="", timeout=5, default=[1]), {"kind": "wait", "timeout_s": 5, "given": [1]}),
        (tool("a", on_error="skip"), {"on_error": "skip"}),
        (mapping("a", "x", "b", max_concurrency=3), {"kind": "chain.map", "decides": True, "expands": True}),
    ],
)  # fmt: skip
def test_a_node_becomes_a_step_of_its_kind(node: ChainNode, expected: dict[str, object]) -> None:
    more = [tool("b")] if node.kind == "map" else []

    planned = step(plan(node, *more), "a")

    assert {name: getattr(planned, name) for name in expected} == expected


def test_an_agent_whose_settings_ask_for_it_sees_the_conversation_in_a_chain() -> None:
    agents = {
        name: Agent(history=History(enabled=enabled))
        for name, enabled in (("yes", True), ("no", False), ("unset", None))
    }
    agents["outer"] = Agent(instructions=[NestedStep(agent="yes")])
    definitions = DEFINITIONS.model_copy(update={"agents": agents})
    seen = {
        name: steps_of_nodes.call(tool("a", kind="agent", name=name), {}, definitions).params.get("history")
        for name in agents
    }

    inner = expand_agent(
        "outer",
        definitions,
        parent="a",
        spec=steps_of_nodes.call(tool("a", kind="agent", name="outer"), {}, definitions),
    )

    assert seen == {"yes": MAX_HISTORY_TOKENS, "no": None, "unset": None, "outer": None}
    assert inner.steps[0].params["history"] == MAX_HISTORY_TOKENS


def test_a_map_carries_what_its_items_are_to_do() -> None:
    graph = plan(
        tool("s", next_node="m"),
        mapping("m", "s.items", "b", max_concurrency=3),
        tool("b", input={"k": 1}, input_map={"x": "_item.x", "y": "s.y", "z": "index"}, on_error="skip"),
    )

    assert step(graph, "m").params == {
        "items": "s.items",
        "window": 3,
        "skip": True,
        "body": {
            "kind": "tool.call",
            "queue": "tools",
            "work": "tools:t",
            "reads": {"s": "s"},
            "on_error": "skip",
            "params": {
                "section": "tools",
                "tool": "t",
                "input": {"k": 1},
                "map": {"x": "_item.x", "y": "s.y", "z": "index"},
            },
        },
    }
    assert [step.id for step in graph.steps] == ["s", "m"]
    assert graph.terminals == ("m",)


def test_a_map_without_a_width_has_the_default_one() -> None:
    narrow = DEFINITIONS.model_copy(update={"defaults": Defaults(max_concurrency=7)})

    assert step(expand.plan(request(mapping("m", "x", "b"), tool("b"), x=[]), narrow), "m").params["window"] == 7


@pytest.mark.parametrize(
    ("of_map", "of_body", "of_item"),
    [("abort", "abort", None), ("skip", "abort", "skip"), ("abort", "skip", "skip"), ("e", "abort", None)],
)
def test_a_failing_item_is_skipped_if_its_map_or_its_node_says_so(
    of_map: str, of_body: str, of_item: str | None
) -> None:
    graph = plan(mapping("m", "x", "b", on_error=of_map), tool("b", on_error=of_body), tool("e", deps=["m"]))

    body = step(graph, "m").params["body"]
    assert isinstance(body, dict)
    assert body.get("on_error") == of_item


def test_a_task_is_sent_by_workers_of_its_own_and_nothing_behind_it_is_carried() -> None:
    definitions = Definitions(
        tools={"pay": Tool(task="shop.pay", queue="shop:payments", retries=1, at_most_once=False)}
    )
    node = ChainNode(node_id="a", kind="tool", name="pay")

    spec = steps_of_nodes.call(node, {}, definitions)

    assert (spec.kind, spec.queue, spec.timeout_s, spec.retries) == ("task.call", "tasks", 600.0, 1)
    assert spec.cheap
    assert spec.expands
    assert steps_of_nodes.call(node.model_copy(update={"timeout": 5.0}), {}, definitions).timeout_s == 5.0
