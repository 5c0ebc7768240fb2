"""The values that expressions of a step may name: node ids, `input` and its keys, `output`, and the item in a map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cantata.flows.expressions import expressions
from cantata.flows.expressions.evaluation import EvaluationBudget
from cantata.values import JsonValue


def expression_root(
    step_id: str, window: str | None, given: JsonValue, inputs: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return the values that expressions of a step may name.

    Args:
        step_id: The step.
        window: The map in whose window it counts.
        given: Its given value, such as a map item.
        inputs: The outputs that it reads, by name.
    """
    initial = inputs.get("@input")
    root: dict[str, JsonValue] = dict(initial) if isinstance(initial, dict) else {}
    root["input"] = initial
    before = [inputs[name] for name in sorted(inputs, key=_order) if name.startswith("@before/")]
    root["output"] = next((value for value in before if value is not None), None)
    outside, _, rest = step_id.partition(f"{window}/")
    if window is not None and not outside and rest:
        root |= {
            "_item": given,
            "item": given,
            "index": int(rest.partition("/")[0]),
        }  # what follows it names a step that the item added
    return root | {name: value for name, value in inputs.items() if not name.startswith("@")}


def node_names(inputs: Mapping[str, JsonValue]) -> frozenset[str]:
    """Return the node ids that expressions of a step may read."""
    return frozenset(name for name in inputs if not name.startswith("@"))


def node_input(
    params: Mapping[str, JsonValue], root: Mapping[str, JsonValue], names: frozenset[str], budget: EvaluationBudget
) -> dict[str, JsonValue]:
    """Return a node's input: its static part, overridden by its mapped part. Raises expressions.ExpressionError."""
    given = cast("dict[str, JsonValue]", params.get("input") or {})
    mapped = cast("dict[str, str]", params.get("map") or {})
    return {**given, **{key: expressions.parse(text, names).evaluate(root, budget) for key, text in mapped.items()}}


def _order(name: str) -> tuple[int, str]:
    number = name.rpartition("/")[2]
    return (int(number) if number.isdigit() else -1, name)
