"""Inputs: what chains declare, what they are given, and names that nothing gives."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cantata.errors import StepError
from cantata.flows.chains import checks, declared_inputs, expand, graph_of_nodes
from cantata.flows.chains.declared_inputs import given_to, inputs_read, read_from_input
from cantata.flows.definitions import Chain, Definitions, Tool
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ChainNode, ChainRequest, TurnRequest
from cantata.values import JsonValue

TOOLS = {"t": Tool(function="m:t")}
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "limit": {"type": "integer", "default": 3},
        "tags": {"items": {"type": "string"}},
    },
    "required": ["text"],
}


def node(node_id: str, **fields: object) -> dict[str, Any]:
    return {"node_id": node_id, "kind": "tool", "name": "t", **fields}


def asked(*nodes: dict[str, Any], **fields: Any) -> ChainRequest:
    return ChainRequest.model_validate({"nodes": list(nodes), "entry_node": nodes[0]["node_id"], **fields})


def faults(
    *nodes: dict[str, Any], is_draft: bool = False, definitions: Definitions | None = None, **fields: Any
) -> list[str]:
    found, code = checks.check(asked(*nodes, **fields), definitions or Definitions(tools=TOOLS), is_draft=is_draft)
    assert code == "bad_request"
    return [str(fault) for fault in found]


def places(messages: list[str]) -> list[str]:
    return [message.partition(": ")[0] for message in messages]


def branching(condition: str) -> list[dict[str, Any]]:
    return [
        node("a", next_node="b"),
        {"node_id": "b", "kind": "branch", "condition": condition, "true_node": "yes", "false_node": "no"},
        node("yes"),
        node("no"),
    ]


# Names


@pytest.mark.parametrize(
    "fields", [{"initial_input": {"text": "x"}}, {"inputs": {"text": "string"}, "initial_input": {"text": "x"}}, {}]
)
def test_a_condition_on_a_node_that_does_not_exist_is_refused(fields: dict[str, Any]) -> None:
    assert places(faults(*branching("aa.foo == `1`"), **fields)) == ["nodes[1] 'b'.condition"]


def test_what_nodes_and_inputs_are_called_may_be_read() -> None:
    assert faults(*branching("a.foo == text"), initial_input={"text": "x"}) == []
    assert faults(*branching("a.foo == input.text AND not_null(output, `1`)"), initial_input={"other": "x"}) == []
    assert faults(*branching("a.foo == text"), inputs={"text": "string?"}) == []


def test_an_item_is_known_to_the_node_of_a_map_and_to_no_other() -> None:
    mapping = {"node_id": "m", "kind": "map", "items_path": "input.items", "map_node": "each"}

    assert (
        faults(
            mapping, node("each", input_map={"x": "_item", "y": "index", "z": "item.a"}), initial_input={"items": []}
        )
        == []
    )
    assert places(faults(node("a", input_map={"x": "_item"}), initial_input={"n": 1})) == ["nodes[0] 'a'.input_map.x"]


def test_a_name_that_nobody_has_is_told_how_to_be_read_if_it_may_be_absent() -> None:
    assert places(faults(node("a", input_map={"x": "verbose"}), initial_input={"n": 1})) == ["nodes[0] 'a'.input_map.x"]
    assert faults(node("a", input_map={"x": "input.verbose"}), initial_input={"n": 1}) == []


def test_a_draft_may_be_given_an_input_yet() -> None:
    assert faults(node("a", input_map={"x": "topic"}), is_draft=True) == []
    assert faults(node("a", input_map={"x": "text"}), is_draft=True, inputs={"text": "string"}) == []
    assert len(faults(node("a", input_map={"x": "tpoic"}), is_draft=True, inputs={"topic": "string"})) == 1


def test_a_key_of_the_input_that_is_not_declared_is_refused() -> None:
    messages = faults(node("a", input_map={"x": "input.txt"}), inputs={"text": "string"}, initial_input={"text": "x"})

    assert places(messages) == ["nodes[0] 'a'.input_map.x"]


def test_an_open_schema_allows_any_name() -> None:
    assert (
        faults(
            node("a", input_map={"x": "other"}),
            inputs={**SCHEMA, "additionalProperties": True},
            initial_input={"text": "x"},
        )
        == []
    )


# What is given


@pytest.mark.parametrize(
    "inputs", [{"text": "string", "limit": {"type": "integer", "default": 3}, "tags": "array?"}, SCHEMA]
)
def test_what_is_given_is_held_against_what_is_declared(inputs: dict[str, JsonValue]) -> None:
    assert faults(node("a"), inputs=inputs, initial_input={"text": "x", "limit": 1, "tags": ["y"]}) == []
    assert faults(node("a"), inputs=inputs, initial_input={"text": "x"}) == []
    assert places(faults(node("a"), inputs=inputs)) == ["initial_input.text"]
    assert places(faults(node("a"), inputs=inputs, initial_input={"txt": "x", "text": "y", "limit": "z"})) == [
        "initial_input.txt",
        "initial_input.limit",
    ]


def test_defaults_are_part_of_the_input() -> None:
    assert expand.input_of(asked(node("a"), inputs=SCHEMA, initial_input={"text": "x"})) == {"text": "x", "limit": 3}
    assert expand.input_of(asked(node("a"), initial_input={"text": "x"})) == {"text": "x"}


# Named chains


def sub(**inputs: JsonValue) -> Definitions:
    nodes = asked(node("x", input_map={"text": "text"})).nodes
    return Definitions(tools=TOOLS, chains={"sub": Chain(nodes=nodes, entry_node="x", inputs=inputs)})


def test_a_node_gives_a_named_chain_the_inputs_that_it_declares() -> None:
    definitions = sub(text="string", limit="integer?")
    call = {"kind": "chain", "name": "sub"}

    assert faults(node("a", **call, input_map={"text": "input.t"}), definitions=definitions) == []
    assert places(faults(node("a", **call, input={"txt": 1, "limit": "x"}), definitions=definitions)) == [
        "nodes[0] 'a'.input",
        "nodes[0] 'a'.input.txt",
        "nodes[0] 'a'.input.limit",
    ]


def test_a_named_chain_reads_what_it_declares_and_nothing_else() -> None:
    assert [str(fault) for fault in checks.check_chains(sub(txt="string"))] == [
        "chains.sub.nodes[0] 'x'.input_map.text: 'text' is neither a node of the chain nor an input; did you mean 'txt'?"
    ]
    chain = sub(text="string").chains["sub"].model_copy(update={"answers": {"said": "y.z"}})
    assert [str(fault) for fault in checks.check_chains(Definitions(tools=TOOLS, chains={"sub": chain}))] == [
        "chains.sub.answers.said: 'y' is neither a node of the chain nor an input; declare it under 'inputs'"
    ]


def test_a_turn_cannot_give_a_workflow_any_other_input_than_its_text() -> None:
    def messages(definitions: Definitions) -> list[str]:
        return [str(fault) for fault in turn_plan.check_turn(TurnRequest(text="hello", workflow="sub"), definitions)]

    assert messages(sub(user_input="string")) == []
    assert messages(sub(text="string")) == [
        "workflow: workflow 'sub' needs the input 'text', which a turn does not give: it gives 'user_input', 'user_query', 'input'"
    ]


def test_what_a_named_chain_gets_in_the_run_is_held_against_its_inputs() -> None:
    chain = sub(text="string", limit={"type": "integer", "default": 3}).chains["sub"]

    assert given_to("sub", chain, {"text": "x"}) == {"text": "x", "limit": 3}
    with pytest.raises(StepError, match="chain 'sub' cannot take its input: text: None is not of type 'string'"):
        given_to("sub", chain, {"text": None})


def test_what_is_read_from_the_input_is_neither_a_node_nor_an_item_nor_the_output() -> None:
    nodes = [
        ChainNode(node_id="a", kind="tool", input_map={"x": "text", "y": "input.file", "z": "output"}),
        ChainNode(node_id="m", kind="map", items_path="a.rows", map_node="b"),
        ChainNode(node_id="b", kind="tool", input_map={"x": "item", "y": "index", "z": "m"}),
        ChainNode(node_id="c", kind="tool", input_map={"x": "item"}),
    ]

    assert read_from_input(graph_of_nodes.read(nodes)) == ["file", "item", "text"]


@pytest.mark.parametrize(
    ("reads", "inputs", "names"),
    [
        ({"x": "input.day"}, {}, ["day"]),
        ({"x": "not_null(output, input.day)"}, {}, ["day"]),
        ({"x": "input.day", "y": "input"}, {}, []),
        ({}, {}, []),
        ({"x": "input.day"}, {"day": "string"}, []),
    ],
)
def test_a_caller_must_give_one_of_the_inputs_that_a_chain_reads_by_name(
    reads: dict[str, str], inputs: dict[str, JsonValue], names: list[str]
) -> None:
    chain = Chain(nodes=[ChainNode(node_id="a", kind="tool", input_map=reads)], entry_node="a", inputs=inputs)

    assert inputs_read(chain) == names


def test_many_unknown_inputs_are_compared_with_the_known_ones_a_few_times_only() -> None:
    inputs: dict[str, JsonValue] = {f"input{n}": "any?" for n in range(2000)}
    begun = time.process_time()

    declared = declared_inputs.sound(inputs)
    assert declared is not None
    found = dict(declared.unknown({f"inptu{n}" for n in range(2000)}))

    assert found["inptu0"] == "is not an input of the chain; did you mean 'input0'?"
    assert found["inptu999"].endswith("'input19' and 1,980 more")
    assert time.process_time() - begun < 5


def test_all_schemas_and_inputs_of_a_request_take_a_bounded_time() -> None:
    schema = {"properties": {f"p{n}": {"type": "string"} for n in range(30)}}
    waits = [{"node_id": f"w{n}", "kind": "wait", "answer_schema": {**schema, "title": str(n)}} for n in range(3000)]
    declared = {f"i{n}": {"type": "array", "items": {"type": "integer", "title": str(n)}} for n in range(500)}
    begun = time.process_time()

    too_many = faults(node("a"), inputs={f"i{n}": {"type": "array", "title": "x" * 1000} for n in range(300)})
    by_schemas = faults(*waits)
    by_inputs = faults(node("a"), inputs=declared, initial_input={name: [1] * 1000 for name in declared})

    assert too_many[0] == "inputs: all declared inputs together have more than 256,000 bytes of JSON"
    assert "the check of all schemas together takes more than 500,000 evaluations" in by_schemas[0]
    assert by_inputs[0].startswith("initial_input: its validation takes more than 500,000 evaluations")
    assert time.process_time() - begun < 8
