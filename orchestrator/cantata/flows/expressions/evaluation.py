"""Evaluation of JMESPath trees with limits on the values visited and the output produced.

JMESPath shares the values that it builds, so `[@,@] | [@,@] | ...` is small in memory and grows exponentially once it is compared or
serialised. Two things are counted: values visited, and bytes of JSON produced. A text that is only visited counts one value for each kB.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from jmespath import functions, visitor

from cantata.flows.definitions import Limits
from cantata.values import JsonValue

_LIMITS = Limits()  # the default limits
MAX_DEPTH = 255  # levels of a value that an expression produces; pydantic accepts no more in an output

FUNCTIONS: Mapping[str, Any] = functions.Functions.FUNCTION_TABLE
"""Function name → its parameters."""

Node = Any  # the library's trees are dicts: {"type", "value", "children"}

_CONSTANT_COST = frozenset(
    {"length", "type", "not_null", "to_array"}
)  # functions whose cost does not depend on the size of arguments
_CALL = 3  # a call, or a comparison within lists and objects, takes as long as three visits
_SORTING = 20  # comparisons of one element among a million
_COMPARISONS = {"sort": _SORTING, "max": 1, "min": 1}


class EvaluationLimitError(ValueError):
    """An expression visits or produces more than its limit; `setting` names the limit that can be raised, if one can."""

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(f"{message} ({setting})" if setting else message)


@dataclass(slots=True)
class EvaluationBudget:
    """The remaining limits of the expressions of one step. Each evaluation uses some of them up."""

    nodes: int = _LIMITS.expression_nodes
    bytes: int = _LIMITS.expression_bytes
    nodes_left: int = field(init=False)
    bytes_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.nodes_left, self.bytes_left = self.nodes, self.bytes

    def count_visits(self, values: int) -> None:
        """Count values that are visited. Raises EvaluationLimitError."""
        self.nodes_left -= values
        if self.nodes_left < 0:
            raise EvaluationLimitError(f"it visits more than {self.nodes:,} values", "limits.expression_nodes")

    def count_output(self, size: int) -> None:
        """Count bytes of JSON that are produced. Raises EvaluationLimitError."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise EvaluationLimitError(f"it produces more than {self.bytes / 1e6:g} MB", "limits.expression_bytes")

    def count_value(self, value: JsonValue) -> None:
        """Count a value as it is serialised, each part as often as it occurs. Raises EvaluationLimitError."""
        self.count_output(_json_size([value], -1, {})[0] - 1)


def _json_size(value: list[Any] | dict[str, Any], depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes of a list or object as JSON and the levels below it. `known` caches parts, which may occur 2³⁰ times."""
    size, height = known.get(id(value), (0, 0))
    if depth + height > MAX_DEPTH:
        raise EvaluationLimitError(f"its output is nested more than {MAX_DEPTH} levels deep")
    if size:
        return size, height
    size = 2 + len(value) + (3 * len(value) + sum(map(len, value)) if isinstance(value, dict) else 0)
    for each in value.values() if isinstance(value, dict) else value:
        kind = type(each)
        if kind is str:
            size += _text_size(each)
        elif kind is list or kind is dict:
            more, levels = _json_size(each, depth + 1, known)
            size, height = size + more, max(height, levels + 1)
        else:
            size += 5  # a number or a word: 1 to 24 characters
    known[id(value)] = size, height
    return size, height


def _text_size(text: str) -> int:
    return 2 + (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))


def is_true(value: JsonValue) -> bool:
    """Return whether a value is true by JMESPath's rules."""
    return not (value is None or value is False or value in ("", [], {}))


def evaluate(tree: Node, root: dict[str, JsonValue], budget: EvaluationBudget) -> JsonValue:
    """Return the value of a tree on this root. Raises EvaluationLimitError, and errors of the library and of Python for unsuitable data."""
    value: JsonValue = _Interpreter(root, budget).visit(tree, root)
    budget.count_value(value)
    return value


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    """Return an ordering that gives null for a text and a number, as in JMESPath's specification; the library raises TypeError."""
    return lambda left, right: compare(left, right) if isinstance(left, str) == isinstance(right, str) else None


_ORDERS = {
    "lt": _ordered(operator.lt),
    "lte": _ordered(operator.le),
    "gt": _ordered(operator.gt),
    "gte": _ordered(operator.ge),
}


def _has_order(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _kilobytes(value: object) -> int:
    return len(value) >> 10 if isinstance(value, str) else 0


def _equal(left: Any, right: Any, budget: EvaluationBudget) -> bool:
    """Compare by Python's `==`, and count the visits."""
    budget.count_visits(_CALL + min(_kilobytes(left), _kilobytes(right)))
    if left is right:
        return True
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            _equal(one, other, budget) for one, other in zip(left, right, strict=True)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(
            key in right and _equal(value, right[key], budget) for key, value in left.items()
        )
    return bool(left == right)


class _Functions(functions.Functions):  # type: ignore[misc]  # jmespath ships no types
    """JMESPath's functions with counting. They return null if an argument that must have a type is null."""

    def __init__(self, budget: EvaluationBudget) -> None:
        super().__init__()
        self._budget = budget

    def call_function(self, function_name: str, resolved_args: list[JsonValue]) -> Any:
        taken = self.FUNCTION_TABLE[function_name]["signature"]
        parameters = zip_longest(resolved_args, taken, fillvalue=taken[-1])
        if any(argument is None and parameter["types"] for argument, parameter in parameters):
            return None
        self._budget.count_visits(_CALL)
        if function_name not in _CONSTANT_COST:
            for argument in resolved_args:
                self._count_argument(argument, _COMPARISONS.get(function_name, 0))
        return super().call_function(function_name, resolved_args)

    def _count_argument(self, argument: object, comparisons: int) -> None:
        """Count an argument whose elements are visited, and their texts if they are compared."""
        if isinstance(argument, str):
            self._budget.count_visits(_kilobytes(argument))
        elif isinstance(argument, list | dict):
            self._budget.count_visits(
                len(argument) + (comparisons * sum(map(_kilobytes, argument)) if comparisons else 0)
            )

    def _create_key_func(
        self, expref: Any, allowed_types: list[str], function_name: str
    ) -> Callable[[JsonValue], JsonValue]:
        key_of = super()._create_key_func(expref, allowed_types, function_name)

        def counted(element: JsonValue) -> JsonValue:
            key: JsonValue = key_of(element)
            if isinstance(key, str):
                self._budget.count_visits(_SORTING * _kilobytes(key))
            return key

        return counted

    @functions.signature(*FUNCTIONS["contains"]["signature"])  # type: ignore[untyped-decorator]  # as above
    def _func_contains(self, subject: list[JsonValue] | str, search: JsonValue) -> bool:
        if isinstance(subject, str):
            return search in subject  # type: ignore[operator]  # the TypeError is reported
        return any(_equal(each, search, self._budget) for each in subject)

    @functions.signature(*FUNCTIONS["to_string"]["signature"])  # type: ignore[untyped-decorator]  # as above
    def _func_to_string(self, arg: JsonValue) -> str:
        if not isinstance(arg, str):
            self._budget.count_value(arg)  # before it is serialised
        text: str = super()._func_to_string(arg)
        if not isinstance(arg, str):
            self._budget.count_output(len(text))  # escapes make it longer
        return text

    @functions.signature(*FUNCTIONS["join"]["signature"])  # type: ignore[untyped-decorator]  # as above
    def _func_join(self, separator: str, array: list[str]) -> str:
        self._budget.count_output(sum(map(len, array)) + len(separator) * len(array))
        return separator.join(array)

    @functions.signature(*FUNCTIONS["reverse"]["signature"])  # type: ignore[untyped-decorator]  # as above
    def _func_reverse(self, arg: list[JsonValue] | str) -> list[JsonValue] | str:
        if isinstance(arg, str):
            self._budget.count_output(len(arg))
        return arg[::-1]


class _Interpreter(visitor.TreeInterpreter):  # type: ignore[misc]  # jmespath ships no types
    """The library's interpreter with counting, and with the tolerant forms as further kinds of nodes."""

    def __init__(self, root: dict[str, JsonValue], budget: EvaluationBudget) -> None:
        super().__init__(visitor.Options(custom_functions=_Functions(budget)))
        self._root = root
        self._budget = budget

    def visit(self, node: Node, value: JsonValue) -> Any:
        self._budget.nodes_left -= 1
        if self._budget.nodes_left < 0:
            self._budget.count_visits(0)  # raises
        method = self._method_cache.get(node["type"])
        if method is None:
            method = self._method_cache[node["type"]] = getattr(self, f"visit_{node['type']}")
        return method(node, value)

    def visit_comparator(self, node: Node, value: JsonValue) -> bool | None:
        left, right = (self.visit(child, value) for child in node["children"])
        self._budget.count_visits(min(_kilobytes(left), _kilobytes(right)))
        if node["value"] not in self._EQUALITY_OPS:
            return _ORDERS[node["value"]](left, right) if _has_order(left) and _has_order(right) else None
        if isinstance(left, list | dict):
            is_same = _equal(left, right, self._budget)
            return is_same if node["value"] == "eq" else not is_same
        return bool(self.COMPARATOR_FUNC[node["value"]](left, right))

    def visit_flatten(self, node: Node, value: JsonValue) -> JsonValue:
        base = self.visit(node["children"][0], value)
        if not isinstance(base, list):
            return None
        merged: list[JsonValue] = []
        for each in base:
            parts = each if isinstance(each, list) else [each]
            self._budget.count_visits(len(parts))
            merged += parts
        return merged

    def visit_slice(self, node: Node, value: JsonValue) -> Any:
        if isinstance(value, list):
            self._budget.count_visits(len(range(*slice(*node["children"]).indices(len(value)))))
        return super().visit_slice(node, value)

    def visit_root(self, _node: Node, _value: JsonValue) -> JsonValue:
        return self._root

    def visit_whole_output(self, _node: Node, value: JsonValue) -> JsonValue:
        return value.get("output", value) if isinstance(value, dict) else value

    def visit_word_or(self, node: Node, value: JsonValue) -> Any:
        left, right = node["children"]
        first = self.visit(left, value)
        return self.visit(right, value) if first is None else first

    def visit_word_and(self, node: Node, value: JsonValue) -> JsonValue:
        left, right = node["children"]
        last = self._holds(left, value) and self.visit(right, value)
        return last if is_true(last) else False

    def visit_test(self, node: Node, value: JsonValue) -> JsonValue:
        return self._holds(node["children"][0], value)

    def _holds(self, node: Node, value: JsonValue) -> bool:
        match node["type"]:
            case "word_or" | "or_expression":
                return any(self._holds(child, value) for child in node["children"])
            case "word_and" | "and_expression":
                return all(self._holds(child, value) for child in node["children"])
            case _:
                return is_true(self.visit(node, value))
