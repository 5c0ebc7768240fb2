"""What an agent's answer says of the turn, at its very start: `[REROUTE] text` or `[FINAL] text`."""

from __future__ import annotations

from typing import Literal

from cantata.models.values import JsonValue

Prefix = Literal["reroute", "final", ""]

_PREFIXES: tuple[tuple[str, Prefix], ...] = (("[REROUTE]", "reroute"), ("[FINAL]", "final"))


def prefix_of(answer: JsonValue) -> tuple[Prefix, JsonValue]:
    """The prefix, and the answer behind it, trimmed; without a prefix the answer as it is. Case counts. Source: PromptChain."""
    if isinstance(answer, str):
        trimmed = answer.strip()
        for text, prefix in _PREFIXES:
            if trimmed.startswith(text):
                return prefix, trimmed.removeprefix(text).strip()
    return "", answer
