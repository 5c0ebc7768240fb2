"""A single node: what is rejected of its id and its fields."""

from __future__ import annotations

import pytest

from cantata.flows.chains.checks import faults_of
from cantata.flows.json_schemas import Allowance
from cantata.flows.wire import ChainNode
from cantata.text.suggestions import Nearest
from tests.unit.flows.sample_chains import DEFINITIONS


def faults(**fields: object) -> list[str]:
    node = ChainNode.model_validate({"node_id": "n", **fields})
    return [
        f"{field}: {message}" for field, message in faults_of(node, DEFINITIONS, {"bad": "cannot be read"}, Allowance())
    ]


@pytest.mark.parametrize(
    "node_id", ["list-files", "2nd", "42", "a.b", "ä", "input", "output", "true", "a b", "'", "x" * 128]
)
def test_ids_of_many_kinds_are_allowed(node_id: str) -> None:
    assert faults(node_id=node_id, kind="tool", name="t") == []


def test_a_node_with_what_its_kind_needs_has_no_faults() -> None:
    assert faults(kind="tool", name="t", input={"x": 1}, input_map={"y": "z"}, retry=2) == []


def test_an_expression_that_cannot_be_read_is_a_fault_of_its_field() -> None:
    assert faults(kind="tool", name="t", input_map={"x": "bad"}) == ["input_map.x: cannot be read"]


def test_suggestions_are_bounded_and_none_is_made_for_what_resembles_nothing() -> None:
    nearest = Nearest([f"name{i}" for i in range(30)])

    assert nearest.hint("nam1") == "; did you mean 'name1'?"
    assert nearest.hint("zzz") == ""
    assert sum(nearest.of(f"nam{i}") is not None for i in range(30)) == 19
    assert Nearest(["x" * 130]).of("x" * 129) is None
