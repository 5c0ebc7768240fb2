"""What a model was asked, as it is recorded with the step: people read it later. What was said since then is recorded as rounds."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.models.values import JsonValue
from cantata.workers.models.dialects.conversation import Message

MAX_MESSAGE_CHARS = 4000  # of one message
MAX_TOTAL_CHARS = 16_000  # of all: a run is kept for a day, beside many others


def recorded(messages: Sequence[Message]) -> list[JsonValue]:
    """The messages, oldest first, as {role, text}: long ones cut, and of many the first and the newest.

    `cut` says that a text goes on, `omitted` how many messages before this one are not recorded.
    """
    left = MAX_TOTAL_CHARS
    kept: list[dict[str, JsonValue]] = []
    rest = list(messages)
    first = _shown(rest.pop(0)) if rest else None
    left -= len(str(first["text"])) if first else 0
    while rest:
        shown = _shown(rest[-1])
        left -= len(str(shown["text"]))
        if left < 0 and kept:
            break
        kept.insert(0, shown)
        rest.pop()
    if rest:
        kept[0]["omitted"] = len(rest)
    return [*([first] if first else []), *kept]


def _shown(message: Message) -> dict[str, JsonValue]:
    text = str(message.get("content") or "")
    shown: dict[str, JsonValue] = {"role": message["role"], "text": text[:MAX_MESSAGE_CHARS]}
    return shown if len(text) <= MAX_MESSAGE_CHARS else {**shown, "cut": True}
