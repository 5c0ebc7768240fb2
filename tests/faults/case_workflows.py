"""Workflows in Python of the named cases, and the functions that they call."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

from cantata import StepError, Workflow, workflow
from cantata.flows.workflows.guard import allow_io, refuse_io
from cantata_workers.steps import workflow_steps


def note(file: str, what: Any) -> Any:
    """Append a line to a file."""
    with Path(file).open("a") as notes:
        notes.write(f"{what}\n")
    return what


@workflow
async def steps(wf: Workflow, journal: str, rounds: int) -> int:
    """Alternate single steps with several at once."""
    total = 0
    for _ in range(rounds):
        total = await wf.tool("work", journal=journal, value=total)
        total += sum(await wf.gather(*(wf.tool("quick", journal=journal) for _ in range(3))))
    return total


@workflow
async def asks(wf: Workflow, journal: str, linger_s: float) -> Any:
    """A step, a wait, a step."""
    await wf.tool("work", journal=journal, seconds=linger_s)
    answer = await wf.wait("go")
    await wf.tool("work", journal=journal, seconds=linger_s)
    return answer


@workflow
async def held(wf: Workflow, journal: str, mark: str, file: str) -> list[Any]:
    """Stand still, once a first command is over, until a file exists; the code asks for the same in each replay."""
    commands = [
        wf.tool("work", journal=journal),
        wf.tool("work", journal=journal, value=10, seconds=1.0),
        wf.wait("go"),
    ]
    found = [await commands[0]]
    _hold(mark, file)
    for each in asyncio.as_completed(commands[1:]):
        found.append(await each)
    return found


def _hold(mark: str, file: str) -> None:
    """Write a mark, and wait for a file."""
    with _files():
        Path(mark).touch()
    while not Path(file).exists():
        time.sleep(0.01)


@contextmanager
def _files() -> Iterator[None]:
    """Use files in the code of a workflow, as no user can."""
    allow_io()
    try:
        yield
    finally:
        refuse_io()


def _count(file: str) -> int:
    """How often this was called for a file."""
    with _files(), Path(file).open("ab") as times:
        times.write(b".")
        return times.tell()


def note_anew(file: str, what: object) -> None:
    """Write a line, and drop the workflows that this process keeps, so that the advance behind this, in this process, is a replay."""
    workflow_steps._discard_kept()
    note(file, what)


@workflow
async def wavers(wf: Workflow, kind: str, file: str) -> None:
    """Ask for something else in a replay."""
    is_replay = _count(f"{file}.times") > 1
    if kind == "clock":
        await wf.call(note_anew, file, time.time_ns())
    elif kind == "chance":
        await wf.call(note_anew, file, random.random())  # not for secrets
    elif kind == "uuid":
        await wf.call(note_anew, file, str(uuid.uuid4()))
    elif kind == "another command":
        await (wf.sleep(0.01) if is_replay else wf.call(note_anew, file, "first"))
    elif kind == "one more":
        asked = [wf.call(note_anew, file, "first"), *([wf.call(note_anew, file, "second")] if is_replay else [])]
        await asked[0]
    elif kind == "one less" and not is_replay:
        await wf.call(note_anew, file, "first")
    await wf.call(note_anew, file, "behind")


@workflow
async def spins(wf: Workflow, kind: str) -> None:
    """Await nothing, for ever."""
    await wf.call(note, "/dev/null", "")
    while True:
        if kind == "yields":
            await asyncio.sleep(0)
        elif kind == "catches":
            try:
                while True:
                    pass
            except BaseException:  # noqa: BLE001  # what users write
                pass


@workflow
async def many(wf: Workflow, commands: int) -> int:
    """Give so many commands at once."""
    return sum(await wf.gather(*(wf.call(one) for _ in range(commands))))


def one() -> int:
    """Return 1."""
    return 1


class OfTwoError(Exception):
    """Cannot be unpickled: it is made of two arguments, and keeps one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class UnspeakableError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnpicklableError(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> Never:
        raise TypeError("no pickle")


def _raises(kind: str) -> Never:
    class LocalError(Exception):
        pass

    made: dict[str, Callable[[], Exception]] = {
        "two": lambda: OfTwoError("one", "two"),
        "unspeakable": UnspeakableError,
        "unpicklable": lambda: UnpicklableError(lambda: None),
        "local": lambda: LocalError(object()),
        "group": lambda: ExceptionGroup("both", [OfTwoError("one", "two"), UnspeakableError()]),
    }
    raise made[kind]()


def raises(kind: str) -> None:
    """Raise an exception of a class of the user's."""
    _raises(kind)


@workflow
async def fails(wf: Workflow, kind: str, where: str) -> str:
    """Catch the failure of a step, or fail by itself behind a step."""
    await wf.call(one)
    if where == "code":
        _raises(kind)
    try:
        await wf.call(raises, kind)
    except StepError as error:
        return f"caught {error.code}: {error}"
    return "nothing"


@workflow
async def tidies(wf: Workflow, file: str) -> None:
    """Wait, and clean up in two steps."""
    try:
        await wf.wait("go")
    finally:
        await wf.call(slow_note, file, "clean")
        await wf.call(note, file, "up")


def slow_note(file: str, what: str) -> None:
    """Append a line to a file, and another one two seconds later."""
    note(file, "begun")
    time.sleep(2)
    note(file, what)
