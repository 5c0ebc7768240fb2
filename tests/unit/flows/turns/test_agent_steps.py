"""Agents become steps: a turn or a row, and the rounds that a turn with tools grows."""

from __future__ import annotations

from typing import Any

import pytest

from cantata.flows.definitions import Agent, Definitions, Tool
from cantata.flows.graph import Graph, Spec, Step, adopt
from cantata.flows.turns.agent_steps import (
    STOP,
    agent_spec,
    agent_step,
    expand_agent,
    is_one_turn,
    next_round,
    tool_step,
)

SHOUT = {"function": "m:shout"}
TOOLS = {
    "price": Tool(function="m:price", retries=2, timeout_s=9, cheap=True),
    "once": Tool(function="m:once", at_most_once=True),
    "files": Tool.model_validate({"mcp": {"command": ["files"]}}),
}


def agent(**fields: Any) -> Agent:
    return Agent.model_validate(fields)


def laid_out(it: Agent, *, spec: Spec | None = None, **others: Agent) -> Graph:
    definitions = Definitions(agents={"it": it, **others}, tools=TOOLS)
    return expand_agent("it", definitions, parent="g", spec=spec or agent_spec("it", it, {}, {}))


def edges(graph: Graph) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.label) for edge in graph.edges]


# One step


@pytest.mark.parametrize("instruction", ["{input}", ["{input}", ["price"]], {"objective": "find"}], ids=str)
def test_one_instruction_for_a_model_is_a_turn(instruction: Any) -> None:
    spec = agent_spec(
        "it", agent(instructions=[instruction], queue="llm", retries=7), {"@text": "=x"}, {"failure": "In it: "}
    )

    assert (spec.kind, spec.queue, spec.work, spec.retries, spec.decides) == (
        "agent.turn",
        "llm",
        "agents:it",
        7,
        False,
    )
    assert spec.params == {"agent": "it", "turn": 0, "failure": "In it: "}


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": ["1", "2"]},
        {"instructions": [SHOUT]},
        {"instructions": [{"agent": "other"}]},
        {"instructions": [{"chain": "c"}]},
        {"chainbreakers": ["m:stop"]},
        {"store_steps": True},
        {"full_history": True},
    ],
    ids=str,
)
def test_all_else_is_a_decision_that_grows_a_row(fields: dict[str, Any]) -> None:
    it = agent(**fields)

    spec = agent_spec("it", it, {}, {})

    assert (is_one_turn(it), spec.kind, spec.decides, spec.expands) == (False, "agent.run", True, True)


@pytest.mark.parametrize(
    ("fields", "expands"),
    [
        ({}, False),
        ({"tools": ["price"]}, True),
        ({"tools": ["price"], "instructions": [["{input}", []]]}, False),
        ({"instructions": [["{input}", ["price"]]]}, True),
        ({"instructions": [{"objective": "find"}]}, True),
        ({"output": {"schema": {}}}, True),
        ({"dialect": "json"}, True),
    ],
    ids=str,
)
def test_a_turn_grows_if_its_model_may_be_asked_again(fields: dict[str, Any], expands: bool) -> None:
    """Only behind a turn that does not, a canvas may carry the next step."""
    assert agent_spec("it", agent(**fields), {}, {}).expands == expands


def test_a_turn_has_no_time_out_of_its_own_since_each_model_call_has_one() -> None:
    assert agent_step("it", "it", agent(timeout_s=5), "=x").timeout_s is None


# A row


def test_a_row_has_a_step_for_each_instruction_each_fed_with_the_one_before() -> None:
    it = agent(instructions=["1 {input}", SHOUT, {"agent": "other"}, {"chain": "c"}, {"objective": "end"}], timeout_s=5)

    graph = laid_out(it, other=agent())

    assert [(step.id, step.kind, step.queue) for step in graph.steps] == [
        ("g/@1", "agent.turn", "agents"),
        ("g/@2", "agent.function", "tools"),
        ("g/@3", "agent.turn", "agents"),
        ("g/@4", "chain.run", "coordinator"),
        ("g/@5", "agent.turn", "agents"),
    ]
    assert [next(iter(step.reads.values())) for step in graph.steps] == ["=g", "g/@1", "g/@2", "g/@3", "g/@4"]
    assert edges(graph) == [(f"g/@{number}", f"g/@{number + 1}", "done") for number in range(1, 5)]
    assert graph.exit == "g/@5"
    assert graph.steps[1].timeout_s == 5
    assert graph.steps[2].work == "agents:other"
    assert graph.steps[3].params == {"chain": "c", "map": {"input": "text"}}


def test_the_time_and_the_tries_of_a_node_are_those_of_its_turns_but_not_of_another_agents() -> None:
    it = agent(instructions=["1 {input}", {"agent": "other"}])
    spec = agent_spec("it", it, {}, {}).model_copy(update={"retries": 9, "timeout_s": 2.0})

    graph = laid_out(it, spec=spec, other=agent(retries=1))

    assert [(step.retries, step.timeout_s) for step in graph.steps] == [(9, 2.0), (1, None)]


def test_keys_of_a_nodes_input_that_texts_name_fill_them() -> None:
    it = agent(system="Be {tone}.", instructions=["About {topic}: {input}", SHOUT, "Again {topic}"])
    params: dict[str, Any] = {"input": {"tone": "kind", "more": 1}, "map": {"topic": "draft", "input": "text"}}

    spec = agent_spec("it", it, {}, params)
    row = expand_agent(
        "it", Definitions(agents={"it": it}), parent="g", spec=spec, filling={"tone": "kind", "topic": "owls"}
    )

    assert spec.params["placeholders"] == ["tone", "topic"]
    assert [step.params.get("input") for step in row.steps] == [
        {"tone": "kind", "topic": "owls"},
        None,
        {"tone": "kind", "topic": "owls"},
    ]


def test_what_is_asked_never_fills_a_gap() -> None:
    spec = agent_spec("it", agent(instructions=["About {text}: {input}"]), {}, {"input": {"text": "owls"}})

    assert "placeholders" not in spec.params


def test_chainbreakers_stand_behind_each_instruction_and_lead_to_the_end() -> None:
    graph = laid_out(agent(instructions=["1 {input}", "2 {input}"], chainbreakers=["m:stop"], timeout_s=5))

    assert [step.id for step in graph.steps] == ["g/@1", "g/@1!", "g/@2", "g/@2!", "g/@end"]
    assert edges(graph)[:4] == [
        ("g/@1", "g/@1!", "done"),
        ("g/@1!", "g/@2", "done"),
        ("g/@2", "g/@2!", "done"),
        ("g/@2!", "g/@end", "done"),
    ]
    assert edges(graph)[4:] == [("g/@1!", "g/@end", STOP), ("g/@2!", "g/@end", STOP)]
    assert graph.steps[1].reads == {"@text": "g/@1", "@input": "=g"}
    assert graph.steps[3].reads == {"@text": "g/@2", "@input": "g/@1!"}
    assert graph.steps[1].timeout_s == 5
    assert graph.steps[4].params == {"agent": "it", "done": ["g/@1", "g/@2"], "ends": ["g/@1!", "g/@2!"]}
    assert graph.exit == "g/@end"


@pytest.mark.parametrize(
    ("fields", "earlier"),
    [
        ({}, []),
        ({"full_history": True}, ["@earlier/0", "@earlier/1", "@first"]),
        (
            {"instructions": ["1", SHOUT, {"objective": "end", "history_mode": "kitchen_sink"}]},
            ["@earlier/0", "@earlier/1", "@first"],
        ),
    ],
    ids=["usually none", "full history", "kitchen sink"],
)
def test_a_turn_reads_the_earlier_ones_where_its_model_is_shown_them(
    fields: dict[str, Any], earlier: list[str]
) -> None:
    graph = laid_out(agent(**{"instructions": ["1", SHOUT, "3"], **fields}))

    assert sorted(name for name in graph.steps[2].reads if name != "@text") == earlier


# Rounds


def turn(**fields: Any) -> Spec:
    return agent_spec("it", agent(tools=["price"], retries=4), {"@text": "=x"}, {}).model_copy(update=fields)


def test_a_round_is_the_calls_and_behind_them_the_next_turn_in_the_place_of_the_first() -> None:
    calls = [Step(id=f"it/t{number}", kind="tool.call") for number in range(2)]

    graph = next_round("it", turn(), 1, calls)

    assert [step.id for step in graph.steps] == ["it/t0", "it/t1", "it/r1"]
    assert edges(graph) == [("it/t0", "it/r1", "done"), ("it/t1", "it/r1", "done")]
    assert graph.exit == "it/r1"
    last = graph.steps[-1]
    assert (last.kind, last.reads, last.retries) == ("agent.turn", {"@text": "=x"}, 4)
    assert last.params == {"agent": "it", "turn": 0, "round": 1, "base": "it"}


def test_further_rounds_count_on_from_the_first_step() -> None:
    first = next_round("m/3", turn(), 1, (), given={"item": 3}).steps[-1]
    second = next_round("m/3/r1", first, 2, (), given=first.given).steps[-1]

    assert (first.id, second.id) == ("m/3/r1", "m/3/r2")
    assert second.params["base"] == "m/3"
    assert second.given == {"item": 3}, "an item's value goes with it"


def test_the_last_turn_fails_as_the_first_would_and_a_tool_does_not_fail_it() -> None:
    spec = turn(on_error="jump", scope="outer", window="m", params={"agent": "it", "turn": 0, "failure": "In it: "})
    call = tool_step("it/t0", "price", {"item": "tea"}, Definitions(tools=TOOLS))

    tool, last = adopt(next_round("it", spec, 1, [call]), "it", spec).steps

    assert (last.on_error, last.scope, last.window, last.params["failure"]) == ("jump", "outer", "m", "In it: ")
    assert (tool.on_error, tool.scope, tool.params["failure"]) == ("skip", "it", "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "price",
            {"kind": "tool.call", "queue": "tools", "work": "tools:price", "retries": 2, "timeout_s": 9, "cheap": True},
        ),
        ("once", {"kind": "tool.call", "at_most_once": True, "retries": 0}),
        ("files.read", {"kind": "mcp.call", "queue": "agents", "work": "tools:files.read"}),
    ],
)
def test_a_call_is_a_step_of_its_tool(name: str, expected: dict[str, Any]) -> None:
    step = tool_step("it/t0", name, {"a": 1}, Definitions(tools=TOOLS))

    assert {key: getattr(step, key) for key in expected} == expected
    assert (step.params["input"], step.params["asked_by"]) == ({"a": 1}, "model")
    assert step.params.get("method") == ("read" if name == "files.read" else None)
