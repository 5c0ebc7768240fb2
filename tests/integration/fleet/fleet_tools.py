"""Tools of the fleet tests. Each writes what it does to a journal outside Redis, so that a test can tell what really happened."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from celery._state import get_current_app


def note(journal: str, what: str, name: object) -> None:
    """Append one line, in one write, so that a kill cannot tear it."""
    line = json.dumps({"what": what, "name": name, "pid": os.getpid(), "at": time.time()}) + "\n"
    with Path(journal).open("ab", buffering=0) as file:
        file.write(line.encode())


def slow(journal: str, mark: object, seconds: float = 1.0) -> object:
    """Take some time, and say so before and after."""
    note(journal, "start", mark)
    time.sleep(seconds)
    note(journal, "finish", mark)
    return mark


async def slow_async(journal: str, mark: object, seconds: float = 0.2) -> object:
    """The same as a coroutine."""
    note(journal, "start", mark)
    await asyncio.sleep(seconds)
    note(journal, "finish", mark)
    return mark


def whose_app() -> str:
    """Tell whose Celery application code in this worker gets as its current one."""
    return type(get_current_app()).__module__


async def whose_app_async() -> str:
    """The same from the thread of coroutines."""
    return type(get_current_app()).__module__


def held(journal: str, mark: object) -> object:
    """Go on until the test writes "release" to the journal, or for a minute."""
    note(journal, "start", mark)
    until = time.monotonic() + 60
    while "release" not in Path(journal).read_text() and time.monotonic() < until:
        time.sleep(0.02)
    note(journal, "finish", mark)
    return mark


def dies_once(journal: str, mark: int, deadly: int = -1, seconds: float = 0.0, hangs: bool = False) -> int:
    """Take the process down where the mark is the deadly one, the first time, or hang there."""
    if mark == deadly and f'"name": {mark},' not in Path(journal).read_text():
        note(journal, "start", mark)
        if not hangs:
            os._exit(7)
        time.sleep(60)
    slow(journal, mark, seconds)
    return mark * 2


def deadly(journal: str) -> None:
    """Take the process down, each time."""
    note(journal, "start", "deadly")
    os._exit(7)


def fail(message: str = "no luck") -> None:
    """Raise."""
    raise RuntimeError(message)


def fail_until(journal: str, times: int) -> int:
    """Raise until called `times` times."""
    note(journal, "start", "fail_until")
    calls = len(Path(journal).read_text().splitlines())
    if calls < times:
        raise RuntimeError(f"call {calls} fails")
    return calls


def leave() -> None:
    """Exit politely."""
    sys.exit(3)


def cancel_itself() -> None:
    """Let out the end of an inner task."""

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(main())


async def interrupt_async() -> None:
    """Raise what ends an event loop of asyncio."""
    raise KeyboardInterrupt


def odd() -> object:
    """Return what is not JSON."""
    return {"fine": 1, "odd": [object()]}


def large(megabytes: float) -> str:
    """Return a large text."""
    return "x" * int(megabytes * 1e6)


def chatty(text: str) -> str:
    """Print."""
    print(text)  # noqa: T201  # the test is that this harms nobody
    return text


def add(a: float, b: float = 1) -> float:
    """Add."""
    return a + b


def echo(**given: object) -> dict[str, object]:
    """Give back what was given."""
    return given
