"""What a chat line is addressed to: `@agent: text`, `@history @agent: text`, or whoever answers."""

from __future__ import annotations

import re
from typing import NamedTuple

_MENTION = re.compile(r"\s*(@history\s+)?@([\w.-]+):(.*)", re.DOTALL)


class Mention(NamedTuple):
    """A line for one agent, past all routing."""

    agent: str
    text: str
    send_history: bool


def mention_of(line: str) -> Mention | None:
    """The agent that a line is for, if it names one. Source: PromptChain, `run_chat`."""
    found = _MENTION.fullmatch(line)
    return None if found is None else Mention(found[2], found[3].strip(), found[1] is not None)
