"""Workflows of the tests, and the functions that they call. They write to a journal what they really did."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import threading
import time
import zoneinfo
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
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


def doze(seconds: float) -> None:
    """Take long."""
    time.sleep(seconds)


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
async def naps(wf: Workflow) -> list[Any]:
    """Sleep, then wait for one signal, and twice for another."""
    await wf.sleep(3600)
    return [await wf.wait(name) for name in ("first", "go", "go")]


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
    both: list[asyncio.Future[Any]] = [wf.call(held, "loser", file), wf.call(add, 5)]
    done, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    return [len(done), len(pending), *(task.result() for task in done)]


@workflow
async def parent(wf: Workflow) -> Any:
    """Run children: a workflow, a chain, a tool, an agent."""
    child = await wf.workflow("row", steps=2, start=5)
    try:
        await wf.workflow("uncaught")
    except StepError as error:
        failure = str(error)
    return [
        child,
        await wf.chain("pair", a=1),
        await wf.tool("add", a=2),
        await wf.agent("clerk", "capital of France"),
        failure,
    ]


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
    await wf.call(add, object())  # type: ignore[call-overload]  # as no caller should


def lines(journal: Path) -> list[str]:
    """What was done."""
    return journal.read_text().splitlines()


@workflow
async def late_question(wf: Workflow) -> Any:
    """Ask only after a step."""
    await wf.call(add, 1)
    return await wf.wait("approve")


@workflow
async def tidy(wf: Workflow) -> list[Any]:
    """Clean up in `finally`, with steps of its own, also in a task that is cancelled."""
    found: list[Any] = []

    async def worker() -> None:
        try:
            await wf.wait("never")
        finally:
            found.append(await wf.call(add, 40))

    task = asyncio.create_task(worker())
    try:
        found.append(await wf.call(add, 1))
        task.cancel()
        await asyncio.wait([task])
    finally:
        found.append(await wf.call(add, 100))
    return found


@workflow
async def swallows(wf: Workflow) -> list[Any]:
    """Catch all there is."""
    found: list[Any] = []
    for number in range(3):
        try:
            found.append(await wf.call(add, number))
        except BaseException as error:  # noqa: BLE001  # what users write
            found.append(str(error))
    return found


@workflow
async def leaves(wf: Workflow) -> None:
    """End its process."""
    await wf.call(add, 1)
    raise SystemExit(3)


@workflow
async def synchronized(wf: Workflow) -> list[Any]:
    """Use a queue, a lock, an event and a semaphore between tasks."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock, ready, few = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(2)
    order: list[str] = []

    async def produce() -> None:
        for number in range(4):
            await queue.put(await wf.call(add, number))
        ready.set()

    async def consume(name: str) -> int:
        await ready.wait()
        async with few, lock:
            order.append(name)
            return int(await wf.call(add, await queue.get()))

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        tasks = [group.create_task(consume(name)) for name in "abcd"]
    as_they_come = [await each for each in asyncio.as_completed([wf.call(add, 1), wf.call(add, 2)])]
    return [order, sorted(task.result() for task in tasks), sorted(as_they_come)]


@workflow
async def polls(wf: Workflow) -> int:
    """Look whether a command is over that nobody awaits; return after how many sleeps it was."""
    future, sleeps = wf.call(add, 1), 0
    while not future.done():
        await wf.sleep(0.2)
        sleeps += 1
    return sleeps


@workflow
async def gives_up(wf: Workflow) -> list[Any]:
    """Give up a wait, a call that has not begun, and one that is under way; then wait again."""
    with suppress(TimeoutError):
        await asyncio.wait_for(wf.wait("approve"), 0.2)
    unbegun = wf.call(add, 950)
    unbegun.cancel()
    begun = wf.call(doze, 600)
    with suppress(TimeoutError):
        await asyncio.wait_for(begun, 1)
    return [await wf.wait("approve"), unbegun.cancelled(), begun.cancelled()]


@workflow
async def drops_a_child(wf: Workflow) -> Any:
    """Give up a workflow within this one, which waits itself and has a call under way; then wait."""
    with suppress(TimeoutError):
        await asyncio.wait_for(wf.workflow("waits_busily"), 1.5)
    return await wf.wait("after")


@workflow
async def waits_busily(wf: Workflow) -> Any:
    """Wait, with a call under way."""
    return await wf.gather(wf.wait("inside"), wf.call(doze, 600))


def numbers() -> list[int]:
    """Return a list."""
    return [1, 2]


def same(value: Any) -> Any:
    """Return the argument."""
    note(f"same {value}")
    return value


@workflow
async def changes_values(wf: Workflow, items: Any) -> list[Any]:
    """Change what it was given, in place."""
    found = await wf.call(numbers)
    while items:
        found.append(await wf.call(same, items.pop(0)))
    await wf.call(same, found)
    return list(found)


@workflow
async def unique(wf: Workflow) -> list[str]:
    """Use what is of one run."""
    key = await wf.call(same, [wf.run_id, str(wf.uuid4())])
    await wf.call(add, 1)
    return list(key)


@workflow
async def calls_back(wf: Workflow) -> str:
    """Wait for what only a callback of another command ends."""
    ended, never = wf.call(add, 1), wf.wait("never")
    ended.add_done_callback(lambda _: never.cancel())
    try:
        await never
    except asyncio.CancelledError:
        return "cancelled"
    return "a signal"


@workflow
async def hurried_gather(wf: Workflow) -> str:
    """Give up a gather: its coroutines are cancelled."""

    async def two(number: int) -> None:
        await wf.wait("never", timeout_s=1)
        await wf.call(add, number)

    try:
        async with asyncio.timeout(0.1):
            await wf.gather(two(901), two(902))
    except TimeoutError:
        await wf.sleep(2)
    return "given up"


@workflow
async def group_fails(wf: Workflow) -> None:
    """Fail in a TaskGroup."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_await(wf.call(fail, "in a group")))


async def _await(future: asyncio.Future[Any]) -> Any:
    return await future


@workflow
async def sleeps_badly(wf: Workflow, seconds: str) -> None:
    """Sleep for what is no number of seconds."""
    await wf.sleep(float(seconds))


@workflow
async def echo(wf: Workflow, value: Any = "nothing") -> Any:
    """Give a value through a step."""
    return await wf.call(same_quietly, value)


def same_quietly(value: Any) -> Any:
    """Return the argument, and write nothing."""
    return value


@workflow
async def stubborn(wf: Workflow, file: str) -> Any:
    """Try again whatever comes, for ever."""
    while True:
        try:
            return await wf.call(held, "stubborn", file)
        except BaseException:  # noqa: BLE001  # what users write
            continue


@workflow
async def orders(wf: Workflow, until: str) -> list[Any]:
    """Receive signals until one says that it is over, with a step between them."""
    found: list[Any] = []
    async for value in wf.signals("order"):
        found.append(value)
        await wf.call(add, len(found))
        if value == until:
            break
    return found


@workflow
async def rounds(wf: Workflow, left: int, total: int = 0) -> int:
    """Begin again for each round, and leave a wait open each time."""
    wf.wait("nobody")
    total = await wf.call(add, total)
    if left:
        wf.continue_as(left=left - 1, total=total)
    return total


@workflow
async def nests_rounds(wf: Workflow) -> list[int]:
    """Have a child that begins again."""
    return [await wf.workflow("rounds", left=2), await wf.workflow("rounds", left=0)]


@workflow
async def grouped_rounds(wf: Workflow, left: int) -> int:
    """Begin again in a task of a group."""

    async def part() -> None:
        if await wf.call(add, left) and left:
            wf.continue_as(left=left - 1)

    async with asyncio.TaskGroup() as group:
        group.create_task(part())
    return left


@workflow
async def paced_orders(wf: Workflow, count: int) -> int:
    """Pause before each signal is received."""
    orders = wf.signals("order")
    await anext(orders)
    for _ in range(count):
        await wf.wait("go")
        await anext(orders)
    return count


@workflow
async def racers(wf: Workflow, file: str) -> list[Any]:
    """Let a function race with a signal, and give a step with chance and time after each."""
    tasks = {asyncio.ensure_future(wf.call(held, "racer", file)), asyncio.ensure_future(wf.wait("go"))}
    found: list[Any] = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found += [task.result() for task in done]
        await wf.call(same_quietly, [*found, wf.random(), wf.now().timestamp(), wf.run_id])
    return [*found, wf.random(), wf.now().timestamp()]


@workflow
async def opens(wf: Workflow, how: str) -> Any:
    """Do I/O in a way that asyncio does not see."""
    await wf.call(add, 1)
    if how == "file":
        return Path(__file__).read_text()  # noqa: ASYNC240  # what users write
    if how == "connection":
        return socket.create_connection(("127.0.0.1", 1), timeout=1)
    if how == "socket":
        return socket.socket().connect(("127.0.0.1", 1))
    if how == "process":
        return subprocess.run(["true"], check=True).returncode  # noqa: ASYNC221  # what users write
    if how == "system":
        return os.system("true")  # noqa: ASYNC221  # what users write
    return threading.Thread(target=print).start()


@workflow
async def harmless(wf: Workflow, folder: str) -> Any:
    """Import, log and use a time zone, all of which read files."""
    await wf.call(add, 1)
    import colorsys  # noqa: PLC0415  # what users write

    handler = logging.FileHandler(Path(folder) / "log", delay=True)
    log = logging.getLogger("desk")
    log.addHandler(handler)
    try:
        raise ValueError("logged")
    except ValueError:
        log.exception("caught")
    finally:
        log.removeHandler(handler)
        handler.close()
    return [colorsys.__name__, str(wf.now().astimezone(zoneinfo.ZoneInfo("Europe/Berlin")).tzinfo)]


@workflow
async def spins(wf: Workflow) -> None:
    """Never come to an await, whatever is raised in it."""
    await wf.call(add, 1)
    while True:
        _count()


def _count() -> None:
    with suppress(BaseException):
        while True:
            pass


@workflow
async def greeting(wf: Workflow, name: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        name: Who is greeted.
        times: How often.
    """
    return " ".join([await wf.call(same_quietly, f"hello {name}") for _ in range(times)])


@workflow
async def first_of(wf: Workflow, one: str, two: str) -> str:
    """Return the first of two texts."""
    return one


@workflow
async def cleans(wf: Workflow, mark: str, waits: bool = False) -> None:
    """Wait for a person, and clean up."""
    reserved = await wf.call(note, f"reserve {mark}")
    try:
        await wf.gather(wf.wait("never"), wf.sleep(3600))
    finally:
        await wf.call(note, f"release {reserved}")
        if waits:
            await wf.wait("never-again")
        await wf.call(note, f"released {reserved}")


@workflow
async def cleans_outside(wf: Workflow, mark: str) -> None:
    """Wait for a child, and clean up, also with a child."""
    try:
        await wf.workflow("cleans", mark=mark)
    except asyncio.CancelledError:
        await wf.workflow("row", steps=2)
        await wf.call(note, f"outside {mark}")
        raise


@workflow
async def goes_on(wf: Workflow) -> str:
    """Swallow the cancellation, and wait again."""
    with suppress(asyncio.CancelledError):
        await wf.wait("never")
    return str(await wf.wait("go"))


@workflow
async def starts(wf: Workflow, name: str, given: dict[str, Any]) -> str:
    """Begin a run of its own."""
    return await wf.start(name, **given)


@workflow
async def starts_later(wf: Workflow) -> list[str]:
    """Begin two runs of their own after a signal, and wait again."""
    await wf.wait("begin")
    begun = await wf.gather(wf.start("approval"), wf.start("pair", a=1))
    await wf.wait("end")
    return begun


@workflow
async def questioned(wf: Workflow, items: list[int]) -> int:
    """Answer queries while it goes through items, and waits at each 0."""
    done: list[int] = []

    @wf.query
    def progress(factor: int = 1) -> dict[str, Any]:
        return {"done": [each * factor for each in done], "of": len(items)}

    for item in items:
        done.append(await wf.call(add, item) if item else await wf.wait("go"))
    return sum(done)


@workflow
async def questioned_parent(wf: Workflow) -> Any:
    """Have two children that answer queries."""
    return await wf.gather(wf.workflow("questioned", items=[5, 0]), wf.workflow("questioned", items=[6, 0]))


@workflow
async def questioned_outer(wf: Workflow) -> Any:
    """Answer a query, and have a child that answers another one."""

    @wf.query
    def place() -> str:
        return "outer"

    return await wf.workflow("questioned", items=[5, 0])


@workflow
async def questioned_rounds(wf: Workflow, left: int) -> None:
    """Answer a query in each of several histories."""

    @wf.query
    def rounds() -> int:
        return left

    if left:
        wf.continue_as(left=left - 1)
    await wf.wait("go")


def mark(value: int, mark: str) -> int:
    """Write a line that no other test writes."""
    note(f"mark {mark} {value}")
    return value + 1


def forget(mark: str) -> None:
    """Write such a line, and return nothing."""
    note(f"mark {mark}")


@workflow
async def steady(wf: Workflow, mark: str, steps: int, once: bool = False, then: str = "") -> Any:
    """Call a cheap tool in a row, and then do what no workflow should."""
    value = 0
    for _ in range(steps):
        value = await wf.options(at_most_once=once).tool("mark", value=value, mark=mark)
    if then == "ask what cannot be sent":
        return await wf.call(note, "half a character: \ud800")
    if then == "log and fail":
        logging.getLogger("desk").warning("logged by %s", mark)
        raise ValueError("no more")
    while then == "never wait":
        _count()
    return value


@workflow
async def forgetful(wf: Workflow, mark: str) -> list[Any]:
    """Call one that returns nothing, and one that fails."""
    found = [await wf.tool("forget", mark=mark), await wf.tool("forget", mark=mark)]
    try:
        await wf.tool("mark", value="no number", mark=mark)
    except StepError as error:
        found.append(error.code)
    return found


@workflow
async def spiral(wf: Workflow, mark: str, left: int, total: int = 0) -> int:
    """Call cheap tools and a workflow, and begin again."""
    for number in range(3):
        total += await wf.tool("mark", value=number, mark=f"{mark}-{left}")
    total += await wf.workflow("steady", mark=f"{mark}-{left}-inner", steps=2)
    await wf.tool("forget", mark=f"{mark}-{left}-{total}")
    if left:
        wf.continue_as(mark=mark, left=left - 1, total=total)
    return total


@workflow
async def many_rows(wf: Workflow, mark: str) -> list[Any]:
    """Many workflows at once, several of which go in one message."""
    return await wf.gather(
        *(wf.options(at_most_once=True).workflow("steady", mark=f"{mark}-{n}", steps=3) for n in range(80))
    )


class Item(BaseModel):
    """A line of a report."""

    what: str
    on: date
    amount: int = 1


@dataclass
class Checked:
    """What is left of a report."""

    items: list[Item]
    total: int


def check_report(items: list[Item], limit: int = 100) -> Checked:
    """Keep the items below a limit."""
    kept = [item for item in items if item.amount < limit and item.on.year > 2000]
    return Checked(kept, sum(item.amount for item in kept))


def wrong_report() -> Checked:
    """Return something else than declared."""
    return {"items": [{"what": "tea"}], "total": 1}  # type: ignore[return-value]  # that is the point


@workflow
async def report(wf: Workflow, items: list[Item], mode: str = "") -> Any:
    """Pass models to a function, and get a dataclass back."""
    if mode == "wrong argument":
        return await wf.call(check_report, [{"what": "tea", "on": "soon"}])  # type: ignore[call-overload]  # that is the point
    if mode == "wrong result":
        return await wf.call(wrong_report)
    checked = await wf.call(check_report, items, limit=50)
    assert isinstance(checked, Checked)
    return [type(checked.items[0]).__name__, checked.items[0].on.isoformat(), checked.total]


class Approval(BaseModel):
    """An answer of a person."""

    approved: bool
    note: str = ""


@workflow
async def typed(wf: Workflow) -> str:
    """Ask for an answer of a type."""
    try:
        answer = await wf.wait("ok", {"amount": 3}, question="Pay it?", answer_type=Approval, who=["legal"])
    except StepError as error:
        return error.code
    return f"{type(answer).__name__} {answer.approved} {answer.note}"
