"""The state that a session's turns share: long-term memories and messages.

The last step of a turn stores the memories. A second attempt writes the same values, since it reads the run's records and not the store.
The turns of a session run one after the other, so the next one finds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from cantata.coordinator.fork_requests import FORKED_FROM
from cantata.models.definitions import History
from cantata.models.values import JsonValue
from cantata.planning.turns.history import MAX_HISTORY_TOKENS
from cantata.workers.frontends.diskurs import tool_calling
from cantata.workers.frontends.diskurs.conversation_state import ConversationState, Utterance
from cantata.workers.frontends.diskurs.user_code import code_loading
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.steps import session_history
from cantata.workers.tools import memory_access

NAMESPACE = "diskurs"
KEY = "longterm_memories"


def store_memories(context: StepContext, state: ConversationState) -> None:
    """Store the long-term memories for the next turn, unless the run is a fork."""
    if _has_stored_memory(context) and FORKED_FROM not in tool_calling.metadata_of(context):
        bank = memory_access.bank_of(context).of(session=memory_access.session_of(context.begun))
        memories: JsonValue = {key: dict(memory) for key, memory in state.memories.items()}
        bank.store_memory(KEY, memories, NAMESPACE)


def load_memories(context: StepContext) -> Mapping[str, Mapping[str, JsonValue]]:
    """Return the long-term memories of the turn before."""
    if not _has_stored_memory(context):
        return {}
    found = memory_access.bank_of(context).of(session=memory_access.session_of(context.begun)).retrieve_memory(KEY, NAMESPACE)
    return {key: memory for key, memory in found.items() if isinstance(memory, dict)} if isinstance(found, dict) else {}


def earlier_utterances(context: StepContext) -> list[Utterance]:
    """Return the messages of the turns before: the user's texts and the answers."""
    if not _has_stored_memory(context):
        return []
    entries, _ = session_history.visible_entries(context, History(), max_tokens=MAX_HISTORY_TOKENS)
    return [Utterance(role="user" if entry.role == "user" else "assistant", text=entry.content) for entry in entries]


def _has_stored_memory(context: StepContext) -> bool:
    return bool(context.begun.session) and code_loading.config_of(context).keeps_memory
