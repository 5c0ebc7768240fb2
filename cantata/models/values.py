"""Values that all other models use: JSON, usage, errors, tool calls with their context, constrained names and parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic import JsonValue as JsonValue  # for all other modules


class ToolMemory(Protocol):
    """Values by key and namespace, of one tenant or of one of its sessions: `cantata.MemoryBank`."""

    def of(self, *, tenant: str | None = None, session: str | None = None) -> Self:
        """Return the memories of a tenant, or of one of its sessions."""

    def store_memory(self, key: str, value: JsonValue, namespace: str = ..., ttl_s: float | None = None) -> None:
        """Store a value, with a time to live of `ttl_s` seconds if it is given."""

    def retrieve_memory(self, key: str, namespace: str = ..., default: JsonValue = None) -> JsonValue:
        """Return the value, or `default` if there is none."""

    def memory_exists(self, key: str, namespace: str = ...) -> bool:
        """Return whether there is a value."""

    def list_memories(self, namespace: str = ...) -> list[str]:
        """Return the keys of a namespace, sorted."""

    def clear_memories(self, namespace: str | None = None) -> int:
        """Delete a namespace, or all of them. Returns the number of deleted values."""

    def append(self, key: str, item: JsonValue, namespace: str = ...) -> int:
        """Append an item to a list. Returns its new length."""

    def update(self, key: str, change: Callable[[Any], JsonValue], namespace: str = ...) -> JsonValue:
        """Replace a value by `change(value)`. Returns the new value."""

    def namespaces(self) -> list[str]:
        """Return the namespaces with values, sorted."""


class Value(BaseModel):
    """Base class of the models: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


def as_text(value: JsonValue) -> str:
    """Return a value as text: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Usage(Value):
    """The consumption of a step or a run."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = Field(None, description="US dollars; null where a price is not known, never 0 for unknown")
    model_calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; the cost is None only if no part has a known price."""
        costs = [part.cost_usd for part in (self, other) if part.cost_usd is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=sum(costs) if costs else None,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
        )


class ErrorInfo(Value):
    """The reason of a failure; never an answer."""

    code: str = Field(description="for programs: step_error, timeout, model_error, tool_error, ...")
    message: str = Field(description="for people: what is wrong, where, what to do")
    step: str | None = Field(None, description="the step that failed")


class ToolSchema(Value):
    """The declaration of a tool for models."""

    name: str
    description: str = Field("", description="what it does, and what it is good for")
    parameters: dict[str, JsonValue] = Field(description="JSON schema of the object of its arguments")


class ToolCallRequest(Value):
    """A tool call that a model asks for."""

    id: str = Field(description="the id that the result refers to")
    name: str = Field(description="the declared name of the tool; empty if the model named none")
    arguments: str = Field("{}", description="the model's text: JSON if it is well formed")


class ToolContext(Value):
    """The context of a tool call: passed to a function's parameter named `context`."""

    run_id: str = Field(description="the run")
    step_id: str = Field(description="the step")
    attempt: int = Field(description="from 1; above 1, an earlier attempt failed or its worker died")
    session: str | None = Field(default=None, description="the session of the turn, if it belongs to one")

    @property
    def idempotency_key(self) -> str:
        """Return a key that is the same in every attempt of this step, and unique to it: for effects that must not happen twice."""
        return f"{self.run_id}:{self.step_id}"

    @property
    def memory(self) -> ToolMemory:
        """Return the memories of the run's tenant; `memory.of(session=context.session)` are those of its session. Only in a worker."""
        raise NotImplementedError("only the context that a worker gives has a memory; a test may override `memory` in a class of its own")


MAX_NAME = 100  # characters
NAME = r"[A-Za-z0-9._-]{1,100}"
SECRETS = ("api_key", "token", "secret", "password", "authorization")


def checked_name(what: str, name: str) -> str:
    """Return the name of a queue or worker. Raises ValueError if it is too long or has other characters than letters, digits and . _ -.

    These names also occur in Redis keys, leases, addresses and metric labels.
    """
    if not re.fullmatch(NAME, name):
        found = repr(name) if len(name) <= MAX_NAME else f"{len(name)} characters"
        raise ValueError(f"a {what}'s name has letters from A to Z, digits and . _ -, at most {MAX_NAME} of them; found {found}")
    return name


MAX_LABELS = 40  # of a run; lists look at all labels of each run
LABEL_NAME_BYTES = 100
LABEL_BYTES = 500


def fault_of_labels(labels: Mapping[str, str]) -> str | None:
    """Return why a run cannot have these labels; None if it can."""
    if len(labels) > MAX_LABELS:
        return f"a run has at most {MAX_LABELS} labels, not {len(labels):,}; put the rest into its input"
    for name, value in labels.items():
        if not isinstance(value, str):
            return f"the value of label {name[:LABEL_NAME_BYTES]!r} must be a text, not {type(value).__name__}"
        for what, text, most in (("name", name, LABEL_NAME_BYTES), ("value", value, LABEL_BYTES)):
            if (size := len(text.encode(errors="replace"))) > most:
                shown = f"the {what} of label {name[:50]!r} has {size:,} bytes"
                return f"{shown}; at most {most} are allowed; shorten it, or put it into the run's input"
    return None


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    if fault := fault_of_labels(labels):
        raise ValueError(fault)
    return labels


Labels = Annotated[dict[str, str], AfterValidator(_checked_labels)]
"""Labels of runs: few and short."""


def _no_secrets(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    named = next((key for key in params if any(word in key.lower() for word in SECRETS) and not key.lower().endswith("tokens")), None)
    if named:
        raise ValueError(f"{named!r} does not belong in a configuration, which is stored with every run; set it in the environment")
    return params


Params = Annotated[dict[str, JsonValue], AfterValidator(_no_secrets)]
"""Parameters of model calls. They hold no secrets, since they are stored with every run."""
