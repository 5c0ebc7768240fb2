"""Rounds of the agent loop: what a model said, what it called, what came back, what it was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from pydantic import Field

from cantata.models.values import JsonValue, Usage, Value
from cantata.workers.models.dialects.call_parsing import ParsedCall

HistoryMode = Literal["minimal", "progressive", "kitchen_sink"]


class ModelRound(Value):
    """One turn of the model within its step; what came back for its calls is kept elsewhere."""

    reply: str = Field(default="", description="the text of the reply, as it came")
    calls: tuple[ParsedCall, ...] = Field(default=(), description="what it asked for, in order")
    kind: Literal["calls", "nudge", "correction"] = Field(default="calls", description="why the model is asked again")
    note: str = Field(default="", description="what the model is told next: a nudge, a correction, a bound that is reached")
    ms: float = Field(default=0.0, description="how long the model took")
    usage: Usage = Field(default_factory=Usage, description="what the model took")
    memory: dict[str, str | None] = Field(
        default_factory=dict, description="of the first round: what placeholders of the prompt name, so that it stays the same"
    )
    errors: tuple[str, ...] = Field(default=(), description="what went wrong meanwhile and was borne")

    def to_json(self) -> JsonValue:
        """As it is stored."""
        return cast(JsonValue, self.model_dump(mode="json", exclude_defaults=True))

    @classmethod
    def from_json(cls, stored: JsonValue) -> ModelRound:
        """As it was before `to_json`."""
        return cls.model_validate(stored)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to: a value, or an error for the model."""

    value: JsonValue = None
    error: str = ""


def effective_result(call: ParsedCall, answer: ToolResult) -> ToolResult:
    """What the call came to; one that could not be made came to its fault, whatever the answer says."""
    return ToolResult(error=call.fault) if call.fault else answer
