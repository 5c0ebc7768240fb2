"""Mentions in chat lines: `@agent: text` and `@history @agent: text` are for one agent."""

from __future__ import annotations

import re
from typing import NamedTuple

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
