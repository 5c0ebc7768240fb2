"""Marks at the start of a text: `@agent: text` in a chat line, `[REROUTE] text` and `[FINAL] text` in an agent's answer."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from cantata.values import JsonValue

_MENTION = re.compile(r"\s*(@history\s+)?@([\w.-]+):(.*)", re.DOTALL)


class Mention(NamedTuple):
    """A line for one agent, which skips routing."""

    agent: str
    text: str
    send_history: bool


def mention_of(line: str) -> Mention | None:
    """Return the mention at the start of a line; None if there is none."""
    found = _MENTION.fullmatch(line)
    return None if found is None else Mention(found[2], found[3].strip(), found[1] is not None)


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
