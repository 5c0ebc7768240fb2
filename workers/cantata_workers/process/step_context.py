"""The context of a step, which its handler is called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from cantata.errors import StepError
from cantata.flows.definitions import Definitions, Tool
from cantata.flows.expressions import expressions, step_values
from cantata.flows.expressions.evaluation import EvaluationBudget
from cantata.flows.graph import Outcome
from cantata.ledger.encoding import to_json
from cantata.ledger.records import Begun
from cantata.values import JsonValue
from cantata_workers.process import outcomes
from cantata_workers.process.config_folder import local_folder
from cantata_workers.process.process import Process

Result = TypeVar("Result")

ModelAnswers = Callable[..., Awaitable[Any]]
"""As `model_calls.call_models`, with its options as a mapping."""


@dataclass(frozen=True)
class StepContext:
    """A begun step, and the process that executes it."""

    begun: Begun
    process: Process
    answer_model: ModelAnswers | None = None
    """Answers the step's model calls in place of models: a replay's recorded answers."""

    @cached_property
    def definitions(self) -> Definitions:
        """The definitions of the run."""
        return self.process.definitions(self.begun.run_id, self.begun.definitions)

    @cached_property
    def tool(self) -> Tool | None:
        """The tool that the step calls; None if it calls none."""
        tools: Mapping[str, Tool] = getattr(self.definitions, self.text_param("section") or "tools", {})
        return tools.get(self.text_param("tool"))

    def wait_for(self, coroutine: Coroutine[object, object, Result]) -> Result:
        """Return the result of a coroutine, run on the event loop of the process. Raises StepError after the step's time-out."""
        try:
            return self.process.run_async(self.begun, coroutine, self.begun.spec.timeout_s)
        except TimeoutError:
            raise outcomes.timed_out(self.begun) from None

    @property
    def folder(self) -> str | None:
        """The folder of the run's configuration on this machine."""
        return local_folder(self.definitions.folder)

    @property
    def params(self) -> Mapping[str, JsonValue]:
        """The step's parameters."""
        return self.begun.spec.params

    def text_param(self, name: str) -> str:
        """Return a text parameter; empty if it is absent."""
        return str(self.params.get(name, ""))

    def int_param(self, name: str) -> int:
        """Return a parameter that is a whole number; 0 if it is absent."""
        return int(cast(int, self.params.get(name, 0)))

    @cached_property
    def root(self) -> dict[str, JsonValue]:
        """The values that expressions of this step may name."""
        begun = self.begun
        return step_values.expression_root(begun.step_id, begun.spec.window, begun.given, begun.inputs)

    def evaluate(self, text: str) -> JsonValue:
        """Return the value of an expression. Raises StepError."""
        with _expression_errors():
            return expressions.parse(text, self.names).evaluate(self.root, self._budget)

    def is_true(self, text: str) -> bool:
        """Return whether a condition is true. Raises StepError."""
        with _expression_errors():
            return expressions.parse(text, self.names).is_true(self.root, self._budget)

    @cached_property
    def _budget(self) -> EvaluationBudget:
        """The rest of the limits that all expressions of this step share."""
        limits = self.definitions.limits
        return EvaluationBudget(limits.expression_nodes, limits.expression_bytes)

    @cached_property
    def names(self) -> frozenset[str]:
        """The node ids its expressions may read."""
        return step_values.node_names(self.begun.inputs)

    @property
    def mapped_names(self) -> Collection[str]:
        """The keys of the node's input that expressions give."""
        return cast("Mapping[str, JsonValue]", self.params.get("map") or {}).keys()

    @cached_property
    def node_input(self) -> dict[str, JsonValue]:
        """The node's input: its static part, overridden by its mapped part."""
        with _expression_errors():
            return step_values.node_input(self.params, self.root, self.names, self._budget)


Handler = Callable[[StepContext], Outcome | Awaitable[Outcome]]
Registered = TypeVar("Registered", bound=Handler)

HANDLERS: dict[str, Handler] = {}
"""Step kind → handler: what this worker can do. `steps/handlers.py` imports the modules that register theirs."""


def handles(kind: str) -> Callable[[Registered], Registered]:
    """Register a function as the handler of the steps of a kind."""

    def register(handler: Registered) -> Registered:
        if kind in HANDLERS:
            raise ValueError(f"{HANDLERS[kind]!r} handles {kind!r} already")
        HANDLERS[kind] = handler
        return handler

    return register


@contextmanager
def _expression_errors() -> Iterator[None]:
    """Turn the errors of expressions into StepErrors."""
    try:
        yield
    except expressions.ExpressionLimitError as error:
        raise StepError(str(error), code="expression_too_large") from error
    except expressions.ExpressionError as error:
        raise StepError(str(error), code="bad_expression") from error


def text_input(context: StepContext) -> str:
    """Return the input text of an agent: its text input, else the node's input as text.

    A node's input is the value of `input` or `text` if that is its only key, else all of it as JSON. Keys that fill placeholders of the
    agent's texts are left out; if there are no others, the text is empty.
    """
    if "@text" in context.begun.inputs:
        return as_compact_text(context.begun.inputs["@text"])
    filled = placeholder_values(context)
    node_input = {key: value for key, value in context.node_input.items() if key not in filled}
    if filled and not node_input:
        return ""
    if len(node_input) == 1 and next(iter(node_input)) in ("input", "text"):
        return as_compact_text(next(iter(node_input.values())))
    return to_json(node_input)


def placeholder_values(context: StepContext) -> dict[str, str]:
    """Return the texts that fill the placeholders of an agent's texts, by the key of its node's input."""
    keys = cast("list[str]", context.params.get("placeholders") or [])
    return {key: as_compact_text(context.node_input[key]) for key in keys}


def as_compact_text(value: JsonValue) -> str:
    """Return a value as text: a string as it is, else its compact JSON."""
    return value if isinstance(value, str) else to_json(value)
