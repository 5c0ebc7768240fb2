"""Values that all other models use: JSON, usage, errors, tool calls and their context."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cantata.models.memory import ToolMemory

__all__ = ["ErrorInfo", "JsonValue", "ToolCallRequest", "ToolContext", "ToolSchema", "Usage", "Value"]


class Value(BaseModel):
    """Base class of the models: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Usage(Value):
    """The consumption of a step or a run."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = Field(default=None, description="US dollars; null where a price is not known, never 0 for unknown")
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
    step: str | None = Field(default=None, description="the step that failed")


class ToolSchema(Value):
    """The declaration of a tool for models."""

    name: str
    description: str = Field(default="", description="what it does, and what it is good for")
    parameters: dict[str, JsonValue] = Field(description="JSON schema of the object of its arguments")


class ToolCallRequest(Value):
    """A tool call that a model asks for."""

    id: str = Field(description="the id that the result refers to")
    name: str = Field(description="the declared name of the tool; empty if the model named none")
    arguments: str = Field(default="{}", description="the model's text: JSON if it is well formed")


class ToolContext(Value):
    """The context of a tool call: passed to a function's parameter named `context`."""

    run_id: str
    step_id: str
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
