"""The small values everything else is made of: JSON, usage, errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cantata.models.memory import ToolMemory

__all__ = ["ErrorInfo", "JsonValue", "ToolCallRequest", "ToolContext", "ToolSchema", "Usage", "Value"]


class Value(BaseModel):
    """Base of every model here: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Usage(Value):
    """What a step or a run consumed."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = Field(default=None, description="US dollars; null where a price is not known, never 0 for unknown")
    model_calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        """The sum; a cost is null only while no part has a known price."""
        costs = [part.cost_usd for part in (self, other) if part.cost_usd is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=sum(costs) if costs else None,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
        )


class ErrorInfo(Value):
    """Why something failed; never an answer."""

    code: str = Field(description="for programs: step_error, timeout, model_error, tool_error, ...")
    message: str = Field(description="for people: what, where, what to do")
    step: str | None = Field(default=None, description="the step it happened in")


class ToolSchema(Value):
    """What a model must know of a tool to call it."""

    name: str
    description: str = Field(default="", description="what it does, and what it is good for")
    parameters: dict[str, JsonValue] = Field(description="JSON schema of the object that holds its arguments")


class ToolCallRequest(Value):
    """One call of a tool that a model asks for."""

    id: str = Field(description="what its result is told under")
    name: str = Field(description="the tool's, as it is declared; empty if the model named none")
    arguments: str = Field(default="{}", description="the model's own text: JSON if it is well formed")


class ToolContext(Value):
    """What a tool may know of the step it is: given to a function's parameter named `context`."""

    run_id: str
    step_id: str
    attempt: int = Field(description="from 1; above it, an earlier attempt failed or its worker died")
    session: str | None = Field(default=None, description="the session of the turn, if it belongs to one")

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this step, and of no other: for effects that must not happen twice."""
        return f"{self.run_id}:{self.step_id}"

    @property
    def memory(self) -> ToolMemory:
        """The memories of the run's tenant; `memory.of(session=context.session)` are those of its session. Only in a worker."""
        raise NotImplementedError("only the context that a worker gives has a memory; a test may override `memory` in a class of its own")
