"""The values that expressions of a step may name."""

from __future__ import annotations

import pytest

from cantata.flows.expressions.evaluation import EvaluationBudget
from cantata.flows.expressions.expressions import ExpressionError
from cantata.flows.expressions.step_values import expression_root, node_input, node_names
from cantata.values import JsonValue


def test_nodes_win_over_keys_of_the_input_and_the_newest_step_before_gives_the_output() -> None:
    inputs: dict[str, JsonValue] = {"@input": {"a": 1, "b": 2}, "b": "node b", "@before/2": "two", "@before/10": None}

    root = expression_root("x", None, None, inputs)

    assert root == {"a": 1, "b": "node b", "input": {"a": 1, "b": 2}, "output": "two"}
    assert node_names(inputs) == {"b"}


@pytest.mark.parametrize("step_id", ["each/3", "each/3/t0"])
def test_an_item_and_what_it_added_have_their_value_and_index(step_id: str) -> None:
    root = expression_root(step_id, "each", {"n": 7}, {"@input": None})

    assert (root["item"], root["_item"], root["index"]) == ({"n": 7}, {"n": 7}, 3)


def test_steps_outside_a_map_have_no_item() -> None:
    assert "item" not in expression_root("other/3", "each", 1, {})
    assert "item" not in expression_root("each/3", None, 1, {})


def test_the_mapped_part_of_an_input_wins_over_its_static_part() -> None:
    params: dict[str, JsonValue] = {"input": {"a": 1, "b": 2}, "map": {"b": "one.x", "c": "length(one.y)"}}

    assert node_input(params, {"one": {"x": 5, "y": [1]}}, frozenset({"one"}), EvaluationBudget(100, 1000)) == {
        "a": 1,
        "b": 5,
        "c": 1,
    }
    with pytest.raises(ExpressionError):
        node_input({"map": {"a": "length(one)"}}, {"one": 1}, frozenset({"one"}), EvaluationBudget(100, 1000))
