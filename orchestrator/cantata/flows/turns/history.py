"""The part of a conversation that is shown: to routers as lines, to agents as messages or as lines before their input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cantata.flows.definitions import History
from cantata.flows.wire import HistoryEntry

CHARACTERS_PER_TOKEN = 4
"""For English. Counting tokens as a model does would need its vocabulary, which comes from the network."""

MAX_HISTORY_TOKENS = 4000
"""Tokens of the history that an agent outside a team sees."""

_ROLES = {"user": "user", "assistant": "assistant", "system_error": "system"}

NO_ANSWER = "(No answer was given.)"
NOT_SHOWN = "(What was said before is not shown.)"
NOTHING_SAID = "No previous conversation history."
NOTHING_FITS = "No recent relevant history (token limit reached)."


def select_entries(newest_first: Iterable[HistoryEntry], settings: History, *, max_tokens: int) -> list[HistoryEntry]:
    """Return the newest entries by these settings, oldest first: up to the tokens of the settings, else `max_tokens`."""
    kept: list[HistoryEntry] = []
    left = settings.max_tokens or max_tokens
    for entry in newest_first:
        if entry.role not in settings.include_types or entry.agent in settings.exclude_sources:
            continue
        left -= estimate_tokens(_line(entry))
        if left < 0:
            if settings.truncation_strategy == "keep_last":
                del kept[1:]
            break
        kept.append(entry)
        if len(kept) == settings.max_entries:
            break
    return kept[::-1]


def as_lines(entries: Sequence[HistoryEntry], *, is_any: bool) -> str:
    """Return entries as lines of a prompt; without entries, a sentence with the reason. `is_any`: whether the conversation has any."""
    return "\n".join(map(_line, entries)) or (NOTHING_FITS if is_any else NOTHING_SAID)


def with_history(entries: Sequence[HistoryEntry], text: str) -> str:
    """Return the text behind the earlier entries, if there are any."""
    return f"Conversation History:\n{as_lines(entries, is_any=True)}\n\nCurrent Input:\n{text}" if entries else text


def as_messages(entries: Sequence[HistoryEntry], prompt: str) -> list[dict[str, str]]:
    """Return entries as earlier messages of a conversation, followed by a prompt.

    Some providers require that user and assistant alternate, and that the user begins. So a failed turn gets a placeholder as its answer,
    consecutive answers are merged, and an answer whose question is cut off follows a placeholder.
    """
    found: list[dict[str, str]] = []
    for role, content in (*((_ROLES[entry.role], entry.content) for entry in entries), ("user", prompt)):
        previous = found[-1]["role"] if found else ""
        if role == previous == "assistant":
            found[-1]["content"] += f"\n\n{content}"
            continue
        if role == "assistant" and all(message["role"] == "system" for message in found):
            found.append({"role": "user", "content": NOT_SHOWN})
        if role == previous == "user":
            found.append({"role": "assistant", "content": NO_ANSWER})
        found.append({"role": role, "content": content})
    return found


def estimate_tokens(text: str) -> int:
    """Return an estimate of the tokens of a text."""
    return len(text) // CHARACTERS_PER_TOKEN + 1


def _line(entry: HistoryEntry) -> str:
    return f"{entry.role.capitalize()}: {entry.content}"
