"""Tools of the fault suite. Each writes to the journal, under the names that the ledger knows it by."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import cast

from cantata import ToolContext

REMEMBERED = "faults"
"""The namespace of what runs remember, each under its own id."""


def work(context: ToolContext, journal: str, value: int = 0, seconds: float = 0.0) -> int:
    """One more than the value, after some time."""
    _note(context, journal, "start")
    time.sleep(seconds)
    _note(context, journal, "finish")
    return value + 1


def add(context: ToolContext, journal: str, **values: int) -> int:
    """The sum of all values."""
    _note(context, journal, "start")
    _note(context, journal, "finish")
    return sum(values.values())


def stumble(context: ToolContext, journal: str, value: int = 0) -> int:
    """As `work`, but its first attempt fails."""
    _note(context, journal, "start")
    if context.attempt == 1:
        raise RuntimeError("the first attempt fails")
    _note(context, journal, "finish")
    return value + 1


def remember(context: ToolContext, journal: str, seconds: float = 0.0) -> int:
    """How many items the run remembers with this step's; another attempt adds one more."""
    _note(context, journal, "start")
    count = context.memory.append(context.run_id, context.step_id, namespace=REMEMBERED)
    time.sleep(seconds)
    _note(context, journal, "finish")
    return count


def recall(context: ToolContext, journal: str) -> list[str]:
    """What the run remembers, each item once."""
    _note(context, journal, "start")
    items = cast("list[str]", context.memory.retrieve_memory(context.run_id, namespace=REMEMBERED))
    _note(context, journal, "finish")
    return sorted(set(items))


async def block(context: ToolContext, journal: str, seconds: float, blocks_s: float) -> str:
    """Take its time as a coroutine, but for the first part of it keep the event loop from everybody."""
    _note(context, journal, "start")
    time.sleep(blocks_s)  # noqa: ASYNC251  # a library that does so is the test
    await asyncio.sleep(seconds - blocks_s)
    _note(context, journal, "finish")
    return "done"


def shout(text: str) -> str:
    """An instruction of a PromptChain."""
    return text.upper()


def _note(context: ToolContext, journal: str, what: str) -> None:
    """Append a line; its time is the system's, which is right even where a test gave Python's clock an error."""
    at = time.clock_gettime(time.CLOCK_REALTIME)
    where = {"run_id": context.run_id, "step_id": context.step_id, "attempt": context.attempt}
    line = json.dumps({"what": what, "at": at, "pid": os.getpid(), **where}) + "\n"
    with Path(journal).open("ab", buffering=0) as file:
        file.write(line.encode())
