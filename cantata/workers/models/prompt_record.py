"""The prompt of a step as it is recorded for people to read. The rounds that follow it are recorded on their own."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.models.values import JsonValue
from cantata.workers.models.dialects.conversation import Message

MAX_MESSAGE_CHARS = 4000  # of one message
MAX_TOTAL_CHARS = 16_000  # of all: a run is kept for a day, beside many others


def recorded(messages: Sequence[Message]) -> list[JsonValue]:
    """Return the messages, oldest first, as {role, text}: long ones truncated, and of many the first and the newest.

    `cut` marks a truncated text; `omitted` is the number of messages before this one that are not recorded.
    """
    left = MAX_TOTAL_CHARS
    kept: list[dict[str, JsonValue]] = []
    rest = list(messages)
    first = _entry(rest.pop(0)) if rest else None
    left -= len(str(first["text"])) if first else 0
    while rest:
        entry = _entry(rest[-1])
        left -= len(str(entry["text"]))
        if left < 0 and kept:
            break
        kept.insert(0, entry)
        rest.pop()
    if rest:
        kept[0]["omitted"] = len(rest)
    return [*([first] if first else []), *kept]


def _entry(message: Message) -> dict[str, JsonValue]:
    text = str(message.get("content") or "")
    entry: dict[str, JsonValue] = {"role": message["role"], "text": text[:MAX_MESSAGE_CHARS]}
    return entry if len(text) <= MAX_MESSAGE_CHARS else {**entry, "cut": True}
