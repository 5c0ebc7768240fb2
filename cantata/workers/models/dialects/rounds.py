"""Rounds of the agent loop: the model's reply, its tool calls, their results, and the note to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from pydantic import Field

from cantata.models.values import JsonValue, Usage, Value
from cantata.workers.models.dialects.call_parsing import ParsedCall

HistoryMode = Literal["minimal", "progressive", "kitchen_sink"]


class ModelRound(Value):
    """One round of a model within its instruction. The results of its calls are the outputs of their own steps."""

    reply: str = Field(default="", description="the text of the reply, unchanged")
    calls: tuple[ParsedCall, ...] = Field(default=(), description="the tool calls, in order")
    kind: Literal["calls", "nudge", "correction"] = Field(default="calls", description="why the model is called again")
    note: str = Field(default="", description="the next message to the model: after an empty reply, a correction, a limit that is reached")
    ms: float = Field(default=0.0, description="the duration of the model call")
    usage: Usage = Field(default_factory=Usage, description="the usage of the model call")
    memory: dict[str, str | None] = Field(
        default_factory=dict, description="in the first round: the memories that placeholders of the prompt name, kept for later rounds"
    )
    errors: tuple[str, ...] = Field(default=(), description="errors that did not end the step")

    def to_json(self) -> JsonValue:
        """Return the round as it is stored."""
        return cast(JsonValue, self.model_dump(mode="json", exclude_defaults=True))

    @classmethod
    def from_json(cls, stored: JsonValue) -> ModelRound:
        """Return the round that `to_json` stored."""
        return cls.model_validate(stored)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call: a value, or an error for the model."""

    value: JsonValue = None
    error: str = ""


def effective_result(call: ParsedCall, answer: ToolResult) -> ToolResult:
    """Return the result of a call; for one that could not be made, its fault."""
    return ToolResult(error=call.fault) if call.fault else answer
