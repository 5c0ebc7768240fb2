"""A step to do, as its handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from cantata.errors import StepError
from cantata.models.definitions import Definitions
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue
from cantata.planning import expressions
from cantata.planning.evaluation import Meter
from cantata.state.runs.encoding import to_json
from cantata.state.runs.records import Begun
from cantata.workers.runtime.process import Process


@dataclass(frozen=True)
class StepContext:
    """A step to do, with the process that does it."""

    begun: Begun
    process: Process

    @cached_property
    def definitions(self) -> Definitions:
        """What the run may name."""
        return self.process.definitions(self.begun.run_id, self.begun.definitions)

    @property
    def params(self) -> Mapping[str, JsonValue]:
        """The step's parameters."""
        return self.begun.spec.params

    def text_param(self, name: str) -> str:
        """A parameter that is text."""
        return str(self.params.get(name, ""))

    @cached_property
    def root(self) -> dict[str, JsonValue]:
        """What expressions of this step see: node ids, `input` and its keys, `output`, and the item in a map."""
        inputs = self.begun.inputs
        initial = inputs.get("@input")
        root: dict[str, JsonValue] = dict(initial) if isinstance(initial, dict) else {}
        root["input"] = initial
        before = [inputs[name] for name in sorted(inputs, key=_order) if name.startswith("@before/")]
        root["output"] = next((value for value in before if value is not None), None)
        window, _, rest = self.begun.step_id.partition(f"{self.begun.spec.window}/")
        if self.begun.spec.window is not None and not window and rest:
            item = self.begun.given
            root |= {"_item": item, "item": item, "index": int(rest.partition("/")[0])}  # behind it: what an item grew
        return root | {name: value for name, value in inputs.items() if not name.startswith("@")}

    def evaluate(self, text: str) -> JsonValue:
        """The value of an expression. Raises StepError."""
        with self._counted():
            return expressions.parse(text, self.names).evaluate(self.root, self._meter)

    def holds(self, text: str) -> bool:
        """Whether a condition holds. Raises StepError."""
        with self._counted():
            return expressions.parse(text, self.names).is_true(self.root, self._meter)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except expressions.TooMuchError as error:
            raise StepError(str(error), code="expression_too_large") from error
        except expressions.ExpressionError as error:
            raise StepError(str(error), code="bad_expression") from error

    @cached_property
    def _meter(self) -> Meter:
        """What is left to all expressions of this step together."""
        limits = self.definitions.limits
        return Meter(limits.expression_nodes, limits.expression_bytes)

    @cached_property
    def names(self) -> frozenset[str]:
        """The node ids its expressions may read."""
        return frozenset(name for name in self.begun.inputs if not name.startswith("@"))

    @cached_property
    def node_input(self) -> dict[str, JsonValue]:
        """A node's input: the static part, and the mapped part, which wins."""
        given = cast("dict[str, JsonValue]", self.params.get("input") or {})
        mapped = cast("dict[str, str]", self.params.get("map") or {})
        return {**given, **{key: self.evaluate(text) for key, text in mapped.items()}}


Handler = Callable[[StepContext], Outcome | Awaitable[Outcome]]


def _order(name: str) -> tuple[int, str]:
    number = name.rpartition("/")[2]
    return (int(number) if number.isdigit() else -1, name)


def text_input(context: StepContext) -> str:
    """What an agent is asked: the text it reads; of a node's input, `input` or `text` if that is the only key, else all of it as JSON.

    What fills gaps in the agent's texts does not count; if there is nothing else, it is asked nothing.
    """
    if "@text" in context.begun.inputs:
        return as_text(context.begun.inputs["@text"])
    gaps = filling(context)
    node_input = {key: value for key, value in context.node_input.items() if key not in gaps}
    if gaps and not node_input:
        return ""
    if len(node_input) == 1 and next(iter(node_input)) in ("input", "text"):
        return as_text(next(iter(node_input.values())))
    return to_json(node_input)


def filling(context: StepContext) -> dict[str, str]:
    """What is put into an agent's texts for the keys of its node's input that they name."""
    gaps = cast("list[str]", context.params.get("gaps") or [])
    return {key: as_text(context.node_input[key]) for key in gaps}


def as_text(value: JsonValue) -> str:
    """An output as a text: itself, or as JSON."""
    return value if isinstance(value, str) else to_json(value)
