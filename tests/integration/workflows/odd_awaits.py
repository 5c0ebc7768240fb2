"""Workflows that await in the ways that asyncio allows and few use. Each takes nothing and says what happened, in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar
from typing import Any

from cantata import StepError, Workflow, workflow
from cantata.flows.definitions import Definitions, PythonWorkflow

PLACE: ContextVar[str] = ContextVar("place", default="outside")


def add(number: int) -> int:
    """Add one."""
    return number + 1


def fail(number: int) -> None:
    """Raise an error."""
    raise ValueError(number)


async def twice(number: int) -> int:
    """Double, as a coroutine."""
    await asyncio.sleep(0)
    return 2 * number


@workflow
async def in_turn(wf: Workflow) -> list[int]:
    """Note the results of tasks as they come."""
    found: list[int] = []

    async def part(number: int) -> None:
        found.append(await wf.call(add, number))

    await asyncio.gather(*(part(number) for number in range(12)))
    return found


@workflow
async def called_back(wf: Workflow) -> list[int]:
    """The same, by callbacks of futures that are gathered."""
    found: list[int] = []
    futures = [wf.call(add, number) for number in range(12)]
    for future in futures:
        future.add_done_callback(lambda done: found.append(done.result()))
    await wf.gather(*futures)
    return found


@workflow
async def sleeps_alike(wf: Workflow) -> list[int]:
    """Note equally long sleeps as they end."""
    found: list[int] = []

    async def part(number: int) -> None:
        await asyncio.sleep(60)
        found.append(number)

    await asyncio.gather(*(part(number) for number in range(12)))
    return found


@workflow
async def two_signals(wf: Workflow) -> list[Any]:
    """Note signals as they come."""
    found: list[Any] = []

    async def part(name: str) -> None:
        found.append([name, await wf.wait(name)])

    await asyncio.gather(*map(part, ("a", "b", "a")))
    return found


@workflow
async def two_kinds(wf: Workflow) -> list[Any]:
    """Note one signal of each name as they come."""
    found: list[Any] = []

    async def part(name: str) -> None:
        found.append([name, await wf.wait(name)])

    await asyncio.gather(*map(part, ("a", "b")))
    return found


@workflow
async def naps_first(wf: Workflow) -> list[Any]:
    """Sleep while signals come, and then note them as their waits end."""
    found: list[Any] = []

    async def part() -> None:
        found.append(await wf.wait("a"))

    await wf.sleep(60)
    await asyncio.gather(*(part() for _ in range(12)))
    return found


@workflow
async def timeout_and_wait(wf: Workflow) -> list[Any]:
    """Give a wait up after a minute, and then wait twice for the same."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            await wf.wait("a")
    return [await wf.wait("a"), await wf.wait("a")]


@workflow
async def again_and_wait(wf: Workflow, again: bool = False) -> list[Any]:
    """Begin a new history after a minute, while a task waits, and then wait twice for the same."""
    if not again:

        async def takes() -> Any:
            return await anext(wf.signals("a"))

        task = asyncio.create_task(takes())
        await wf.sleep(60)
        assert not task.done()
        wf.continue_as(again=True)
    return [await wf.wait("a"), await wf.wait("a")]


@workflow
async def timeout_around_a_wait(wf: Workflow) -> list[Any]:
    """Give a wait up, and then get its signal by the next one."""
    found: list[Any] = []
    for _ in range(2):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                found.append(await wf.wait("late"))
    found.append(await wf.wait("a"))
    return found


@workflow
async def first_of_two_waits(wf: Workflow) -> list[Any]:
    """Take one signal, cancel the wait for the other one, and wait for that again."""
    waits = {name: asyncio.ensure_future(wf.wait(name)) for name in ("a", "never")}
    done, pending = await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        each.cancel()
    again = wf.wait("b")
    return [len(done), len(pending), [each.result() for each in done], waits["never"].cancelled(), await again]


@workflow
async def shielded(wf: Workflow) -> list[Any]:
    """Give up waiting for a call that goes on, and get its result later."""
    call = asyncio.ensure_future(wf.call(add, 1))
    outer = asyncio.ensure_future(asyncio.shield(call))
    await asyncio.sleep(0)
    outer.cancel()
    found: list[Any] = []
    try:
        await outer
    except asyncio.CancelledError:
        found.append("given up")
    return [*found, await call, call.done(), outer.cancelled()]


@workflow
async def group_with_a_failure(wf: Workflow) -> list[Any]:
    """Fail in one task of a group: the others are cancelled where they wait, and clean up."""
    found: list[Any] = []

    async def waits() -> None:
        try:
            await wf.wait("never")
        except asyncio.CancelledError:
            found.append(await wf.call(add, 10))
            raise

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits())
            group.create_task(waits())
            group.create_task(fails(wf))
    except* StepError as errors:
        found.append([error.code for error in errors.exceptions if isinstance(error, StepError)])
    return found


async def fails(wf: Workflow) -> None:
    """Fail with a step."""
    await wf.call(fail, 1)


@workflow
async def event_of_a_signal(wf: Workflow) -> list[Any]:
    """Set an event in a task that waits for a signal."""
    event, found = asyncio.Event(), []

    async def sets() -> None:
        found.append(await wf.wait("a"))
        event.set()

    task = asyncio.create_task(sets())
    await event.wait()
    return [*found, task.done(), await wf.call(add, 1), task.done()]


@workflow
async def nested_gathers(wf: Workflow) -> list[Any]:
    """Gather gathers, with exceptions as results."""
    found = await asyncio.gather(
        asyncio.gather(wf.call(add, 1), wf.call(fail, 2), return_exceptions=True),
        wf.gather(wf.call(fail, 3), wf.call(add, 4), return_exceptions=True),
        asyncio.gather(wf.call(add, 5), wf.call(fail, 6)),
        return_exceptions=True,
    )

    def plain(value: Any) -> Any:
        return type(value).__name__ if isinstance(value, Exception) else value

    return [[plain(each) for each in part] if isinstance(part, list) else plain(part) for part in found]


@workflow
async def polls(wf: Workflow) -> list[Any]:
    """Look at futures between awaits that do not wait."""
    call, wait = wf.call(add, 1), wf.wait("a")
    before = [call.done(), wait.done()]
    for _ in range(3):
        await asyncio.sleep(0)
    before += [call.done(), wait.done()]
    await wf.sleep(60)
    seen = [call.done()]
    await asyncio.wait([wait])
    return [before, seen, wait.done(), wait.result(), call.result()]


@workflow
async def wait_with_a_timeout(wf: Workflow) -> list[Any]:
    """Wait for some of many, for a time."""
    tasks = [asyncio.create_task(asyncio.sleep(seconds, seconds)) for seconds in (10, 5000, 20)]
    done, pending = await asyncio.wait(tasks, timeout=100)
    again, left = await asyncio.wait(pending, timeout=100)
    return [sorted(each.result() for each in done), len(pending), len(again), len(left), await tasks[1]]


@workflow
async def queue_between_tasks(wf: Workflow) -> list[Any]:
    """Have three workers take from a queue, and stop them by cancelling."""
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    found: list[Any] = []

    async def works(name: str) -> None:
        while True:
            number = await queue.get()
            found.append([name, await wf.call(add, number)])
            queue.task_done()

    workers = [asyncio.create_task(works(name)) for name in "xyz"]
    for number in range(7):
        await queue.put(number)
    await queue.join()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return [*found, all(worker.cancelled() for worker in workers)]


@workflow
async def generators(wf: Workflow) -> list[Any]:
    """Iterate over a generator that awaits steps, leave it early, and close it."""
    found: list[Any] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(5):
                yield await wf.call(add, number)
        finally:
            found.append(await wf.call(add, 100))

    async with contextlib.aclosing(numbers()) as opened:
        async for number in opened:
            found.append(number)
            if number == 2:
                break
    found.append([number async for number in numbers() if number % 2])
    async for value in wf.signals("a"):
        found.append(value)
        break
    return found


@workflow
async def generator_left_open(wf: Workflow) -> list[Any]:
    """Leave a generator early and do not close it: asyncio closes it later."""
    found: list[Any] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield await wf.call(add, 1)
            yield await wf.call(add, 2)
        finally:
            found.append("closed")

    async for number in numbers():
        found.append(number)
        break
    found.append(await wf.call(add, 5))
    return [each for each in found if each != "closed"]


@workflow
async def contexts(wf: Workflow) -> list[Any]:
    """Give tasks context variables of their own."""
    found: list[Any] = []

    async def part(name: str) -> None:
        PLACE.set(name)
        await wf.call(add, 1)
        found.append(PLACE.get())

    PLACE.set("main")
    await asyncio.gather(part("one"), part("two"))
    await wf.call(add, 2)
    return [sorted(found), PLACE.get()]


@workflow
async def wait_for_in_time(wf: Workflow) -> list[Any]:
    """Await with time limits that hold, and others that do not."""
    found: list[Any] = [await asyncio.wait_for(wf.call(add, 1), 60)]
    for begin in (lambda: wf.wait("never"), asyncio.Event().wait, asyncio.Queue[int]().get):
        try:
            await asyncio.wait_for(begin(), 30)
        except TimeoutError:
            found.append("late")
    async with asyncio.timeout(None) as limit:
        limit.reschedule(asyncio.get_running_loop().time() + 50)
        found.append(await wf.wait("a"))
    return [*found, limit.expired()]


@workflow
async def nested_timeouts(wf: Workflow) -> list[Any]:
    """The inner of two time limits passes, then the outer one."""
    found: list[Any] = []
    try:
        async with asyncio.timeout(100):
            try:
                async with asyncio.timeout(10):
                    await wf.wait("never")
            except TimeoutError:
                found.append("inner")
            await wf.wait("never")
    except TimeoutError:
        found.append("outer")
    return found


@workflow
async def cancels_itself(wf: Workflow) -> list[Any]:
    """Cancel the own task, catch it, and go on."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel("enough")
    try:
        await wf.call(add, 1)
    except asyncio.CancelledError as error:
        found = [str(error), task.cancelling(), task.uncancel()]
    return [*found, await wf.call(add, 2)]


@workflow
async def cancelled_task_that_refuses(wf: Workflow) -> list[Any]:
    """A task that catches its cancellation and goes on with a step."""

    async def refuses() -> int:
        with contextlib.suppress(asyncio.CancelledError):
            await wf.wait("never")
        return await wf.call(add, 1)

    task = asyncio.create_task(refuses())
    await wf.call(add, 5)
    return [task.cancel(), await task, task.cancelled()]


@workflow
async def locks(wf: Workflow) -> list[Any]:
    """Take turns with a lock, a semaphore, a condition and a barrier."""
    lock, semaphore, condition, barrier = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Condition(), asyncio.Barrier(3)
    found: list[Any] = []

    async def part(number: int) -> None:
        async with semaphore:
            await wf.call(add, number)
        async with lock:
            found.append(await wf.call(add, 10))
        async with condition:
            condition.notify_all()
        await barrier.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(part(number))
        async with condition:
            await condition.wait_for(lambda: len(found) >= 2)
    return [found, barrier.broken]


@workflow
async def as_they_complete(wf: Workflow) -> list[Any]:
    """Take tasks and commands as they complete, some of them late."""
    found: list[Any] = []
    commands: list[asyncio.Future[Any]] = [wf.call(add, 1), wf.call(add, 2), wf.sleep(5000)]
    try:
        for each in asyncio.as_completed(commands, timeout=100):
            found.append(await each)
    except TimeoutError:
        found.append("late")
    for each in asyncio.as_completed([asyncio.create_task(twice(number)) for number in range(4)]):
        found.append(await each)
    return sorted(found, key=str)


@workflow
async def done_before_it_is_awaited(wf: Workflow) -> list[Any]:
    """Await futures twice, late, and in another order; one fails and is never awaited."""
    one, two, three = wf.call(add, 1), wf.call(add, 2), wf.call(fail, 3)
    await wf.sleep(10)
    return [await two, await one, await two, three.done(), type(three.exception()).__name__]


@workflow
async def eager_start(wf: Workflow) -> list[Any]:
    """Run a function in the loop soon and later, and set a future of one's own."""
    loop = asyncio.get_running_loop()
    found: list[str] = []
    future: asyncio.Future[str] = loop.create_future()
    loop.call_soon(found.append, "soon")
    loop.call_later(30, future.set_result, "set later")
    handle = loop.call_later(20, found.append, "never")
    handle.cancel()
    return [await future, *found, handle.cancelled()]


@workflow
async def runs_nested(wf: Workflow) -> list[Any]:
    """Hold several things open at once by an exit stack."""
    found: list[Any] = []

    @contextlib.asynccontextmanager
    async def opened(name: str) -> AsyncIterator[None]:
        found.append([name, await wf.call(add, 1)])
        try:
            yield
        finally:
            found.append([f"close {name}", await wf.call(add, 2)])

    async with contextlib.AsyncExitStack() as stack:
        for name in ("one", "two"):
            await stack.enter_async_context(opened(name))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await wf.wait("never")
    return found


@workflow
async def wait_in_a_shield(wf: Workflow) -> list[Any]:
    """Give up a shielded wait: it stays open, and its signal comes to who holds it."""
    wait = asyncio.ensure_future(wf.wait("a"))
    found: list[Any] = []
    try:
        await asyncio.wait_for(asyncio.shield(wait), 0.5)
    except TimeoutError:
        found.append("late")
    return [await wait]


@workflow
async def many_waits_of_a_name(wf: Workflow) -> list[Any]:
    """Give up some of many waits of one name."""
    waits = [wf.wait("never") for _ in range(3)]
    await wf.call(add, 1)
    for each in waits:
        each.cancel()
    await wf.call(add, 2)
    return [all(each.cancelled() for each in waits), await wf.wait("a"), await wf.wait("a")]


@workflow
async def exception_groups(wf: Workflow) -> list[Any]:
    """Nest task groups, fail in the inner one, and catch by kind."""
    found: list[Any] = []
    try:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(fails(wf))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fails(wf))
                inner.create_task(asyncio.sleep(5000))
    except* StepError as group:
        found.append(len(group.exceptions) > 0)
    return found


NAMES = tuple(name for name, value in list(globals().items()) if getattr(value, "__cantata_workflow__", False))


def definitions() -> Definitions:
    """The workflows of this module."""
    return Definitions(workflows={name: PythonWorkflow(function=f"{__name__}:{name}") for name in NAMES})
