"""Tools and functions that remember."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from cantata import ToolContext


def note(context: ToolContext, text: str) -> int:
    """Notes a text for the tenant."""
    return context.memory.append("notes", text)


def prefer(context: ToolContext, key: str, value: str) -> str:
    """Keeps a preference of the session, or of the tenant without one."""
    context.memory.of(session=context.session).store_memory(key, value, "preferences")
    return "kept"


async def recall(context: ToolContext, key: str) -> object:
    """What is remembered under a key."""
    return context.memory.retrieve_memory(key, default="nothing")


def trespass(context: ToolContext, other: str) -> object:
    """Opens the memory of another tenant."""
    return context.memory.of(tenant=other).list_memories()


def crowd(context: ToolContext, writers: int) -> int:
    """Writes from many threads of one process."""
    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(lambda number: context.memory.append("crowd", [os.getpid(), number]), range(writers)))
    return len(context.memory.list_memories())


def commands(text: str) -> str:
    """Makes commands of a text."""
    return f"MEMORY STORE said={text}\nMEMORY LIST"
