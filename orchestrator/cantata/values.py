"""Values that all other models use: JSON, usage, errors, tool calls with their context, constrained names and parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
)
from pydantic import JsonValue as JsonValue  # for all other modules
from pydantic_core import PydanticCustomError

from cantata import bounds
from cantata.errors import StoredDataError

Model = TypeVar("Model", bound=BaseModel)


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


# --- fields with bounds ---------------------------------------------------------------------------------------------------------

_STORED = {"stored": True}


def stored(model: type[Model], data: str | Any, *, ignores_unknown: bool = False) -> Model:
    """Return the model of stored data, or of its JSON text, without the bounds of fields: those of the version that stored it may be wider.

    `ignores_unknown` leaves out fields of newer versions.

    Raises:
        ValidationError: A newer version wrote fields or words that this one does not know.
        StoredDataError: No version can read them.
    """
    extra: Literal["ignore"] | None = "ignore" if ignores_unknown else None
    try:
        if not isinstance(data, str):
            return model.model_validate(data, context=_STORED, extra=extra)
        try:
            return model.model_validate_json(data, context=_STORED, extra=extra)
        except ValidationError as error:
            if error.errors(include_input=False)[0]["type"] != "json_invalid":
                raise
        # older versions stored 255 levels, and pydantic reads 200 of a text
        return model.model_validate(json.loads(data), context=_STORED, extra=extra)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        if first["type"] in _TOO_DEEP:
            raise StoredDataError(f"the stored {model.__name__} is nested too deeply") from None
        if not first["loc"] and first["type"] in _NO_OBJECT:
            raise StoredDataError(f"the stored {model.__name__} is no object") from None
        raise
    except RecursionError:
        raise StoredDataError(f"the stored {model.__name__} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise StoredDataError(f"the stored {model.__name__} is not JSON: {error}") from None


_TOO_DEEP = ("recursion_depth_exceeded", "recursion_loop")
_NO_OBJECT = ("model_type", "model_attributes_type", "dict_type")


def _is_stored(info: ValidationInfo) -> bool:
    return info.context is _STORED


def _bounded(value: Any, info: ValidationInfo) -> Any:
    if not _is_stored(info) and (excess := bounds.find(value, max_bytes=4 * bounds.MAX_BYTES)):
        raise PydanticCustomError(
            "out_of_bounds", "{fault}", {"fault": excess.message, "path": excess.path[: bounds.MAX_SHOWN_PARTS]}
        )
    return value


BoundedJson = Annotated[JsonValue, BeforeValidator(_bounded)]
"""Any JSON within the bounds: at most 64 levels, whole numbers of at most 300 digits."""
BoundedObject = Annotated[dict[str, JsonValue], BeforeValidator(_bounded)]
"""A JSON object within the bounds."""


def _within_ten_years(seconds: float, info: ValidationInfo) -> float:
    if seconds > bounds.MAX_DURATION_S and not _is_stored(info):
        raise ValueError(f"expected at most {bounds.MAX_DURATION_S:.0f} seconds (10 years), found {seconds:g}")
    return seconds


def _between_2000_and_2200(moment: datetime) -> datetime:
    if not bounds.FIRST_YEAR <= moment.year <= bounds.LAST_YEAR:
        raise ValueError(
            f"expected a date and time between {bounds.FIRST_YEAR} and {bounds.LAST_YEAR + 1}, found {moment.isoformat()}"
        )
    return moment


NumberOfSeconds = Annotated[float, Strict()]
"""Seconds: neither a text nor true or false. The field has its own bounds."""
Duration = Annotated[
    float,
    Strict(),
    Field(gt=0, json_schema_extra={"maximum": bounds.MAX_DURATION_S}),
    AfterValidator(_within_ten_years),
]
"""Seconds, above 0 and at most ten years."""
Instant = Annotated[datetime, AfterValidator(_between_2000_and_2200)]
"""A date and time between 2000 and 2200."""


Unreadable = Annotated[
    str,
    Field(
        description="why its record cannot be read, and how to remove it: its other fields are unknown then; empty if it can"
    ),
]
"""A field of each row of a list, so that a record that cannot be read is a row, too."""


# --- values -------------------------------------------------------------------------------------------------------------


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
        raise NotImplementedError(
            "only the context that a worker gives has a memory; a test may override `memory` in a class of its own"
        )


MAX_NAME = 100  # characters
NAME = r"[A-Za-z0-9._-]{1,100}"
SECRETS = ("api_key", "token", "secret", "password", "authorization")


def checked_name(what: str, name: str) -> str:
    """Return the name of a queue or worker. Raises ValueError if it is too long or has other characters than letters, digits and . _ -.

    These names also occur in Redis keys, leases, addresses and metric labels.
    """
    if not re.fullmatch(NAME, name):
        found = repr(name) if len(name) <= MAX_NAME else f"{len(name)} characters"
        raise ValueError(
            f"a {what}'s name has letters from A to Z, digits and . _ -, at most {MAX_NAME} of them; found {found}"
        )
    return name


def fault_of_labels(labels: Mapping[str, str]) -> str | None:
    """Return why a run cannot have these labels; None if it can."""
    if len(labels) > bounds.MAX_LABELS:
        return f"a run has at most {bounds.MAX_LABELS} labels, not {len(labels):,}; put the rest into its input"
    for name, value in labels.items():
        if not isinstance(name, str):
            return f"the name of a label must be a text, not {type(name).__name__}"
        if not isinstance(value, str):
            return f"the value of label {name[: bounds.LABEL_NAME_BYTES]!r} must be a text, not {type(value).__name__}"
        for what, text, most in (("name", name, bounds.LABEL_NAME_BYTES), ("value", value, bounds.LABEL_BYTES)):
            if (size := len(text.encode(errors="replace"))) > most:
                shown = f"the {what} of label {name[:50]!r} has {size:,} bytes"
                return f"{shown}; at most {most} are allowed; shorten it, or put it into the run's input"
            if "\0" in text or not bounds.is_text(text):
                return f"the {what} of label {name[:50]!r} has a NUL character, or half a surrogate pair"
    return None


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    if fault := fault_of_labels(labels):
        raise ValueError(fault)
    return labels


Labels = Annotated[dict[str, str], AfterValidator(_checked_labels)]
"""Labels of runs: few and short."""


def _no_secrets(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    named = next(
        (key for key in params if any(word in key.lower() for word in SECRETS) and not key.lower().endswith("tokens")),
        None,
    )
    if named:
        raise ValueError(
            f"{named!r} does not belong in a configuration, which is stored with every run; set it in the environment"
        )
    return params


Params = Annotated[BoundedObject, AfterValidator(_no_secrets)]
"""Parameters of model calls. They hold no secrets, since they are stored with every run."""
