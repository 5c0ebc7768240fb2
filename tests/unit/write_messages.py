"""`python -m tests.unit.write_messages`: writes what users see of each bad input in tests/unit/messages, for review as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tests.unit.messages import (
    chains,
    configurations,
    diskurs,
    expressions,
    langswarm,
    python_chains,
    schedules,
    schemas,
    turns,
    workflows,
)
from tests.unit.messages.entries import Entry, written

GOLDEN = Path(__file__).with_name("messages.txt")
ROOMS: dict[str, Callable[[], Iterator[Entry]]] = {
    "chains": chains.found,
    "turns": turns.found,
    "configurations": configurations.found,
    "configurations of LangSwarm": langswarm.found,
    "configurations of Diskurs": diskurs.found,
    "AgentChain and PromptChain": python_chains.found,
    "expressions": expressions.found,
    "schemas": schemas.found,
    "schedules": schedules.found,
    "workflows": workflows.found,
}
MARK = f"\n{'=' * 20}"
HEAD = """\
Messages of the checks, as users see them. Written by `python -m tests.unit.write_messages`; the inputs are in tests/unit/messages.
Under each input stand its messages, one a line, behind `>`. A code in brackets comes first if it is another one than bad_request.
"""


@cache
def entries_of(room: str) -> tuple[Entry, ...]:
    """Return all entries of a room."""
    return tuple(ROOMS[room]())


def section(room: str) -> str:
    """Return the part of the file about a room."""
    return heading(room) + "".join(written(entries_of(room)))


def heading(room: str) -> str:
    """Return the first line of a section."""
    return f"{MARK} {room} {'=' * 20}\n"


def files() -> dict[Path, str]:
    """Return each file with the text that it should have."""
    return {GOLDEN: HEAD + "".join(map(section, ROOMS))}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
