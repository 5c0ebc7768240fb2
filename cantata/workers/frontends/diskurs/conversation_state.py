"""Where a conversation stands after a step, and what was said in it; what was said before lies in the steps that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from pydantic import Field

from cantata.models.values import JsonValue, ToolSchema, Value
from cantata.workers.runtime.step_context import StepContext


class Utterance(Value):
    """Something that was said."""

    role: Literal["user", "assistant"] = Field(description="whose it is: an agent's model's, or what it was told")
    text: str
    by: str = Field(default="", description="the agent at whose turn it was said")
    is_inner: bool = Field(default=False, description="whether only conductors see it")


class ConversationState(Value):
    """A conversation, as a step hands it to the next."""

    memories: dict[str, dict[str, JsonValue]] = Field(description="long-term memories, by their class")
    agent: str = Field(default="", description="who had it last")
    conductor: str = Field(default="", description="the conductor that had it last")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="the prompt arguments of who had it last")
    dispatches: dict[str, int] = Field(default_factory=dict, description="how often each conductor had it")
    past: tuple[str, ...] = Field(default=(), description="the steps in which something was said, oldest first")
    utterances: tuple[Utterance, ...] = Field(default=(), description="what was said in this step")
    exhausted: str = Field(default="", description="the bound that a part of a parallel agent's work reached")
    system: str = Field(default="", description="where a turn begins: its system prompt")
    tools: tuple[ToolSchema, ...] = Field(default=(), description="where a turn begins: what its model may call")
    parts: tuple[ConversationState, ...] = Field(default=(), description="where a parallel agent splits the conversation: the parts")

    @classmethod
    def of(cls, context: StepContext, name: str = "@conversation") -> ConversationState:
        """As it stood after the step that is read under a name."""
        return cls.model_validate(context.begun.inputs[name])

    def to_json(self) -> JsonValue:
        """As it is stored."""
        return cast(JsonValue, self.model_dump(mode="json", exclude_defaults=True))

    def with_(self, step_id: str, *utterances: Utterance, **changes: object) -> ConversationState:
        """The conversation after the step `step_id`, in which this was said."""
        past = (*(each for each in self.past if each != step_id), step_id) if utterances else self.past
        return self.model_copy(update={"utterances": utterances, "past": past, "system": "", "tools": (), "parts": (), **changes})

    def chat(self, context: StepContext) -> list[Utterance]:
        """All that was said."""
        return utterances_in(context, self.past)


def utterances_in(context: StepContext, steps: Sequence[str]) -> list[Utterance]:
    """What was said in steps of the run."""
    texts = context.process.ledger.outputs(context.begun.run_id, steps) if steps else []
    found = [cast("Mapping[str, list[JsonValue]]", json.loads(text)) for text in texts if text]
    return [Utterance.model_validate(each) for output in found for each in output.get("utterances", [])]
