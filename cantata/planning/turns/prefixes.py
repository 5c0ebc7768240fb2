"""Routing prefixes at the start of an agent's answer: `[REROUTE] text` or `[FINAL] text`."""

from __future__ import annotations

from typing import Literal

from cantata.models.values import JsonValue

Prefix = Literal["reroute", "final", ""]

_PREFIXES: tuple[tuple[str, Prefix], ...] = (("[REROUTE]", "reroute"), ("[FINAL]", "final"))


def prefix_of(answer: JsonValue) -> tuple[Prefix, JsonValue]:
    """Return the prefix and the trimmed answer behind it; without a prefix the answer unchanged. Case-sensitive."""
    if isinstance(answer, str):
        trimmed = answer.strip()
        for text, prefix in _PREFIXES:
            if trimmed.startswith(text):
                return prefix, trimmed.removeprefix(text).strip()
    return "", answer
