"""The state of a conversation after a step, with the utterances of that step; earlier utterances are in the steps that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from pydantic import Field

from cantata.features.forks.fork_requests import FORKED_FROM
from cantata.flows.definitions import History
from cantata.flows.turns.history import MAX_HISTORY_TOKENS
from cantata.values import JsonValue, ToolSchema, Value
from cantata_workers.frontends.diskurs import tool_calling
from cantata_workers.frontends.diskurs.user_code import code_loading
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps import session_history
from cantata_workers.tools import memory_access


class Utterance(Value):
    """A message of the conversation."""

    role: Literal["user", "assistant"] = Field(description="assistant: an agent's model; user: what it received")
    text: str
    by: str = Field(default="", description="the agent whose turn it was")
    is_inner: bool = Field(default=False, description="whether only conductors see it")


class ConversationState(Value):
    """The state of a conversation, as a step passes it to the next."""

    memories: dict[str, dict[str, JsonValue]] = Field(description="long-term memories, by their class")
    agent: str = Field(default="", description="the agent that had it last")
    conductor: str = Field(default="", description="the conductor that had it last")
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="the prompt arguments of the agent that had it last"
    )
    dispatches: dict[str, int] = Field(default_factory=dict, description="how often each conductor had it")
    past: tuple[str, ...] = Field(default=(), description="the steps with utterances, oldest first")
    utterances: tuple[Utterance, ...] = Field(default=(), description="the messages of this step")
    exhausted: str = Field(default="", description="branch of a parallel agent: the bound that it reached")
    system: str = Field(default="", description="first step of a turn: its system prompt")
    tools: tuple[ToolSchema, ...] = Field(default=(), description="first step of a turn: the tools of its model")
    parts: tuple[ConversationState, ...] = Field(
        default=(), description="step that splits a parallel agent's conversation: the parts"
    )

    @classmethod
    def of(cls, context: StepContext, name: str = "@conversation") -> ConversationState:
        """Return the state after the step that is read under a name."""
        return cls.model_validate(context.begun.inputs[name])

    def to_json(self) -> JsonValue:
        """Return the stored form."""
        return cast(JsonValue, self.model_dump(mode="json", exclude_defaults=True))

    def with_(self, step_id: str, *utterances: Utterance, **changes: object) -> ConversationState:
        """Return the state after the step `step_id`, with the utterances of that step."""
        past = (*(each for each in self.past if each != step_id), step_id) if utterances else self.past
        return self.model_copy(
            update={"utterances": utterances, "past": past, "system": "", "tools": (), "parts": (), **changes}
        )

    def chat(self, context: StepContext) -> list[Utterance]:
        """Return all utterances."""
        return utterances_in(context, self.past)


def utterances_in(context: StepContext, steps: Sequence[str]) -> list[Utterance]:
    """Return the utterances of steps of the run."""
    texts = context.process.ledger.reader.outputs(context.begun.run_id, steps) if steps else []
    found = [cast("Mapping[str, list[JsonValue]]", json.loads(text)) for text in texts if text]
    return [Utterance.model_validate(each) for output in found for each in output.get("utterances", [])]


# --- what a session's turns share -----------------------------------------------------------------------------------


NAMESPACE = "diskurs"
KEY = "longterm_memories"


def store_memories(context: StepContext, state: ConversationState) -> None:
    """Store the long-term memories for the next turn, unless the run is a fork.

    The last step of a turn stores them. A second attempt writes the same values, since it reads the run's records and not the store.
    The turns of a session run one after the other, so the next one finds them.
    """
    if _has_stored_memory(context) and FORKED_FROM not in tool_calling.metadata_of(context):
        bank = memory_access.bank_of(context).of(session=memory_access.session_of(context.begun))
        memories: JsonValue = {key: dict(memory) for key, memory in state.memories.items()}
        bank.store_memory(KEY, memories, NAMESPACE)


def load_memories(context: StepContext) -> Mapping[str, Mapping[str, JsonValue]]:
    """Return the long-term memories of the turn before."""
    if not _has_stored_memory(context):
        return {}
    found = (
        memory_access.bank_of(context)
        .of(session=memory_access.session_of(context.begun))
        .retrieve_memory(KEY, NAMESPACE)
    )
    return {key: memory for key, memory in found.items() if isinstance(memory, dict)} if isinstance(found, dict) else {}


def earlier_utterances(context: StepContext) -> list[Utterance]:
    """Return the messages of the turns before: the user's texts and the answers."""
    if not _has_stored_memory(context):
        return []
    entries, _ = session_history.visible_entries(context, History(), max_tokens=MAX_HISTORY_TOKENS)
    return [Utterance(role="user" if entry.role == "user" else "assistant", text=entry.content) for entry in entries]


def _has_stored_memory(context: StepContext) -> bool:
    return bool(context.begun.session) and code_loading.config_of(context).keeps_memory
