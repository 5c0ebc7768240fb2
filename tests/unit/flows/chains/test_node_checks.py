"""A single node: what is rejected of its id and its fields."""

from __future__ import annotations

import pytest

from cantata.flows.chains.checks import faults_of
from cantata.flows.json_schemas import Allowance
from cantata.flows.wire import ChainNode, fault_of_kind
from cantata.text.suggestions import Nearest
from tests.unit.flows.sample_chains import DEFINITIONS

FOR_EVER = "these refer to each other for ever, with one and the same value"


def faults(**fields: object) -> list[str]:
    node = ChainNode.model_validate({"node_id": "n", **fields})
    return [f"{field}: {message}" for field, message in faults_of(node, DEFINITIONS, {"bad": "cannot be read"}, Allowance())]


@pytest.mark.parametrize("node_id", ["list-files", "2nd", "42", "a.b", "ä", "input", "output", "true", "a b", "'", "x" * 128])
def test_ids_of_many_kinds_are_allowed(node_id: str) -> None:
    assert faults(node_id=node_id, kind="tool", name="t") == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kind": "tool", "name": "t", "input": {"x": 1}, "input_map": {"y": "z"}, "retry": 2}, []),
        ({"kind": "tool", "name": "t", "condition": "x"}, ["condition: has no effect on a tool; it belongs to a branch"]),
        ({"kind": "map", "items_path": "x", "map_node": "b", "retry": 1}, ["retry: has no effect on a map; put it on its map_node"]),
        ({"kind": "agent", "name": "team", "timeout": 1}, ["timeout: has no effect on a team; put it on what the team runs"]),
        ({"kind": "wait", "default": 1}, ["default: has no effect without 'timeout', after which it is the output"]),
        ({"kind": "tool", "name": "files"}, ["name: 'files' is an MCP server; name one of its tools, as 'files.<tool>'"]),
        ({"kind": "tool", "name": "ls"}, ["name: 'ls' is not under 'tools'; it is under 'commands': make the kind 'proc'"]),
        ({"kind": "tool", "name": "slwo"}, ["name: 'slwo' is not under 'tools'; did you mean 'slow'?"]),
        ({"kind": "chain"}, ["name: is missing: a chain needs a name under 'chains'"]),
        ({"kind": "tool", "name": "t", "input_map": {"x": "bad"}}, ["input_map.x: cannot be read"]),
        (
            {"kind": "wait", "answer_schema": {"items": {"type": "strin"}}},
            ["answer_schema.items.type: this is not a valid JSON Schema: 'strin' is not valid under any of the given schemas"],
        ),
        ({"kind": "wait", "answer_schema": {"$ref": "#"}}, [f"answer_schema: this is not a valid JSON Schema: {FOR_EVER}: '#' → '#'"]),
        ({"kind": "tol", "name": "t"}, ["kind: " + str(fault_of_kind("tol"))]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_node_is_said_with_its_field(fields: dict[str, object], expected: list[str]) -> None:
    assert faults(**fields) == expected


@pytest.mark.parametrize(
    ("node_id", "expected"),
    [
        ("", ["node_id: the id is empty"]),
        ("x" * 129, ["node_id: the id has 129 characters; 128 are allowed"]),
        ("a/b", ["node_id: the id contains '/', which is not allowed: use letters, digits, '-', '_' and '.'"]),
    ],
)
def test_an_id_that_would_break_step_ids_is_refused(node_id: str, expected: list[str]) -> None:
    assert faults(node_id=node_id, kind="tool", name="t") == expected


def test_suggestions_are_bounded_and_none_is_made_for_what_resembles_nothing() -> None:
    nearest = Nearest([f"name{i}" for i in range(30)])

    assert nearest.hint("nam1") == "; did you mean 'name1'?"
    assert nearest.hint("zzz") == ""
    assert sum(nearest.of(f"nam{i}") is not None for i in range(30)) == 19
    assert Nearest(["x" * 130]).of("x" * 129) is None
