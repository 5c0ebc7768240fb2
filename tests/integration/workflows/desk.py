"""Workflows of the tests, and the functions that they call. They write to a journal what they really did."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cantata import StepError, Workflow, workflow


class Order(BaseModel):
    """An input with a schema."""

    item: str
    amount: int = 1


def note(what: str) -> str:
    """Write a line to the journal."""
    with Path(os.environ["DESK_JOURNAL"]).open("a") as journal:
        journal.write(what + "\n")
    return what


def add(a: int, b: int = 1) -> int:
    """Add."""
    note(f"add {a} {b}")
    return a + b


def fail(message: str) -> None:
    """Raise an error."""
    note(f"fail {message}")
    raise ValueError(message)


def held(mark: str, file: str) -> str:
    """Wait for a file."""
    note(f"start {mark}")
    while not Path(file).exists():
        time.sleep(0.01)
    return note(mark)


async def later(mark: str) -> str:
    """Return at once, as a coroutine."""
    await asyncio.sleep(0)
    return mark


@workflow
async def row(wf: Workflow, steps: int, start: int = 0) -> int:
    """Call a function in a row."""
    total = start
    for _ in range(steps):
        total = await wf.call(add, total)
    return total


@workflow
async def fan(wf: Workflow, width: int) -> list[int]:
    """Call a function many times at once."""
    return await wf.gather(*(wf.call(add, number) for number in range(width)))


@workflow
async def asyncio_fan(wf: Workflow) -> Any:
    """Gather coroutines of two calls each with asyncio's own functions."""

    async def twice(number: int) -> int:
        return int(await wf.call(add, await wf.call(add, number)))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(twice(number)) for number in range(3)]
    return [task.result() for task in tasks], await asyncio.gather(*(twice(number) for number in range(10, 12)))


@workflow
async def caught(wf: Workflow) -> list[str]:
    """Handle failures of steps."""
    found = []
    try:
        await wf.call(fail, "one")
    except StepError as error:
        found += [error.code, str(error)]
    both = await wf.gather(wf.call(fail, "two"), wf.call(add, 1), return_exceptions=True)
    return [*found, type(both[0]).__name__, str(both[1])]


@workflow
async def uncaught(wf: Workflow) -> None:
    """Fail with the failure of a step."""
    await wf.call(fail, "not caught")


@workflow
async def broken(wf: Workflow, order: Order) -> None:
    """Fail by itself."""
    await wf.call(add, order.amount)
    raise KeyError(order.item)


@workflow
async def approval(wf: Workflow, file: str = "") -> Any:
    """Wait for a person."""
    answer = await wf.wait("approve", {"words": 3}, timeout_s=86_400, default="nobody")
    return [answer, await wf.call(add, 1)]


@workflow
async def sleeper(wf: Workflow) -> float:
    """Sleep for hours in three ways."""
    since = wf.now()
    await wf.sleep(3600)
    await asyncio.sleep(timedelta(hours=1).total_seconds())
    try:
        async with asyncio.timeout(60):
            await wf.wait("never")
    except TimeoutError:
        pass
    return (wf.now() - since).total_seconds()


@workflow
async def first(wf: Workflow, file: str) -> list[Any]:
    """Take the first of two answers; the other one is stopped when the workflow ends."""
    held_task = asyncio.ensure_future(wf.call(held, "loser", file))
    done, pending = await asyncio.wait([held_task, asyncio.ensure_future(wf.call(add, 5))], return_when=asyncio.FIRST_COMPLETED)
    return [len(done), len(pending), *(task.result() for task in done)]


@workflow
async def parent(wf: Workflow) -> Any:
    """Run children: a workflow, a chain, a tool, an agent."""
    child = await wf.workflow("row", steps=2, start=5)
    try:
        await wf.workflow("uncaught")
    except StepError as error:
        failure = str(error)
    return [child, await wf.chain("pair", a=1), await wf.tool("add", a=2), await wf.agent("clerk", "capital of France"), failure]


@workflow
async def values(wf: Workflow) -> list[Any]:
    """Use chance and time, and look at them again after a replay."""
    before = [wf.random(), str(wf.uuid4()), wf.now().timestamp()]
    await wf.call(later, "x")
    return [*before, wf.random()]


@workflow
async def journey(wf: Workflow, file: str) -> list[Any]:
    """Several steps that leave traces, one of which is held."""
    one = await wf.call(add, 1)
    two = await wf.call(held, "middle", file)
    return [one, two, await wf.call(add, 3)]


@workflow
async def stuck(wf: Workflow) -> None:
    """Wait for what never comes."""
    await wf.call(add, 1)
    await asyncio.get_running_loop().create_future()


@workflow
async def reads_a_socket(wf: Workflow) -> None:
    """Do I/O of its own."""
    await asyncio.open_connection("localhost", 80)


@workflow
async def misspelt(wf: Workflow) -> None:
    """Name a tool that is not there."""
    await wf.tool("ad", a=1)


@workflow
async def not_json(wf: Workflow) -> None:
    """Give an argument that is not JSON."""
    await wf.call(add, object())


def lines(journal: Path) -> list[str]:
    """What was done."""
    return journal.read_text().splitlines()


@workflow
async def late_question(wf: Workflow) -> Any:
    """Ask only after a step."""
    await wf.call(add, 1)
    return await wf.wait("approve")
