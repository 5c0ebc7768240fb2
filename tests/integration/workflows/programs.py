"""A workflow that executes a generated program, and programs by chance: what asyncio has for tasks, and all that `wf` has for waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, cast

from hypothesis import strategies

from cantata import StepError, Workflow, workflow
from cantata.flows.definitions import Definitions, PythonWorkflow

Statement = list[Any]
Block = list[Statement]

NAMES = ("a", "b")
"""The signals."""
TEXT: ContextVar[str] = ContextVar("text", default="")


def definitions() -> Definitions:
    """The workflow of this module."""
    return Definitions(workflows={"program": PythonWorkflow(function=f"{__name__}:program")})


def add(a: int) -> int:
    """Add one."""
    return a + 1


def fail(a: int) -> None:
    """Raise an error."""
    raise ValueError(a)


class Boom(Exception):
    """An error of a program."""


@workflow
async def program(wf: Workflow, code: Block, again: int = 0) -> list[Any]:
    """Execute a program; return what happened, in order."""
    machine = Machine(wf, again)
    await machine.block(code)
    return machine.log


class Machine:
    """What the statements of a program share."""

    def __init__(self, wf: Workflow, again: int) -> None:
        self.wf, self.again = wf, again
        self.log: list[Any] = []
        self.queues = [asyncio.Queue[Any](size) for size in (0, 1)]
        self.events = [asyncio.Event() for _ in range(2)]
        self.locks: list[Any] = [asyncio.Semaphore(1), asyncio.BoundedSemaphore(2), asyncio.Lock(), asyncio.Condition()]
        self.kept: dict[int, asyncio.Future[Any]] = {}

    def note(self, *what: Any) -> None:
        """Add to the log."""
        self.log.append([*what])

    async def block(self, code: Block) -> Any:
        """Execute statements, one after the other; return the value of the last one."""
        value = None
        for kind, *given in code:
            value = await getattr(self, f"do_{kind}")(*given)
        return value

    def tasks(self, blocks: list[Block]) -> list[asyncio.Task[Any]]:
        """A task for each block."""
        return [asyncio.create_task(self.block(each), name=str(number)) for number, each in enumerate(blocks)]

    async def caught(self, label: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Note what a coroutine raises; a cancellation of this task is raised on."""
        try:
            return await coroutine
        except TimeoutError:
            self.note(label, "late")
        except StepError as error:
            self.note(label, error.code)
        except (Boom, BaseExceptionGroup) as error:
            self.note(label, type(error).__name__)
        return None

    # --- commands

    async def do_call(self, number: int) -> Any:
        value = await self.wf.call(add, number)
        self.note("call", value)
        return value

    async def do_fail(self, number: int) -> None:
        await self.caught("fail", self._call_failing(number))

    async def _call_failing(self, number: int) -> None:
        await self.wf.call(fail, number)

    async def do_sleep(self, seconds: int) -> None:
        await (self.wf.sleep(seconds) if seconds % 2 else asyncio.sleep(seconds))
        self.note("slept", seconds)

    async def do_wait(self, name: str, timeout_s: int | None) -> Any:
        value = await self.wf.wait(name, timeout_s=timeout_s, default="none")
        self.note("signal", name, value)
        return value

    async def do_signals(self, name: str, count: int) -> None:
        async for value in self.wf.signals(name):
            self.note("one of", name, value)
            count -= 1
            if count <= 0:
                break

    async def do_chance(self) -> None:
        self.note("chance", len(str(self.wf.uuid4())), self.wf.random() < 2)

    async def do_patch(self, name: str) -> None:
        self.note("patch", self.wf.patched(name))

    async def do_child(self, code: Block) -> None:
        async def child() -> None:
            self.note("child", await self.wf.workflow("program", code=code))

        await self.caught("child", child())

    async def do_again(self, code: Block) -> None:
        """Begin a new history, twice at most."""
        if self.again < 2:
            self.wf.continue_as(code=code, again=self.again + 1)

    # --- tasks

    async def do_boom(self) -> None:
        raise Boom

    async def do_yield(self) -> None:
        await asyncio.sleep(0)

    async def do_start(self, key: int, code: Block) -> None:
        self.kept[key] = asyncio.create_task(self.block(code))

    async def do_future(self, key: int, name: str | None) -> None:
        self.kept[key] = self.wf.call(add, key) if name is None else self.wf.wait(name)

    async def do_callback(self, key: int) -> None:
        if key in self.kept:
            self.kept[key].add_done_callback(lambda future: self.note("called back", key, future.cancelled()))

    async def do_later(self, seconds: int) -> None:
        asyncio.get_running_loop().call_later(seconds, self.note, "later", seconds)

    async def do_cancel(self, key: int) -> None:
        if key in self.kept:
            self.note("cancel", self.kept[key].cancel())

    async def do_done(self, key: int) -> None:
        self.note("done", key in self.kept and self.kept[key].done())

    async def do_poll(self, key: int, count: int) -> None:
        for number in range(count):
            if key in self.kept and self.kept[key].done():
                self.note("polled", number)
                return
            await asyncio.sleep(0)

    async def do_join(self, key: int) -> None:
        if key in self.kept:
            future = self.kept[key]
            await asyncio.wait([future])  # which, cancelled, does not cancel a task that waits for itself
            self.note(
                "joined", key, "cancelled" if future.cancelled() else plain(future.exception() or future.result())
            )

    async def do_gather(self, own: bool, quiet: bool, blocks: list[Block]) -> None:
        async def gather() -> None:
            coroutines = [self.block(each) for each in blocks]
            gathered = await (self.wf.gather if own else asyncio.gather)(*coroutines, return_exceptions=quiet)
            self.note("gathered", [plain(each) for each in gathered])

        await self.caught("gather", gather())

    async def do_commands(self, numbers: list[int]) -> None:
        self.note("commands", await self.wf.gather(*(self.wf.call(add, number) for number in numbers)))

    async def do_group(self, blocks: list[Block]) -> None:
        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                for each in blocks:
                    tasks.create_task(self.block(each))

        await self.caught("group", group())

    async def do_race(self, when: str, timeout_s: int | None, cancels: bool, blocks: list[Block]) -> None:
        tasks = self.tasks(blocks)
        done, pending = await asyncio.wait(tasks, timeout=timeout_s, return_when=when)
        for task in done:  # in the order of the set
            self.note(
                "first",
                task.get_name(),
                plain(task.exception() or task.result()) if not task.cancelled() else "cancelled",
            )
        for task in pending:
            if cancels:
                task.cancel()
        if cancels and pending:
            await asyncio.wait(pending)

    async def do_raw_race(self, names: list[str], numbers: list[int], timeout_s: int) -> None:
        """Race futures of commands themselves, without tasks."""
        futures: list[asyncio.Future[Any]] = [
            *map(self.wf.wait, names),
            *(self.wf.call(add, number) for number in numbers),
        ]
        done, pending = await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        self.note("raw", [futures.index(each) for each in done], [plain(each.result()) for each in done])
        for each in pending:
            each.cancel()

    async def do_completed(self, blocks: list[Block]) -> None:
        for each in asyncio.as_completed(self.tasks(blocks)):
            await self.caught("completed", self._completed(each))

    async def _completed(self, each: Any) -> None:
        self.note("completed", plain(await each))

    async def do_limit(self, seconds: int, how: str, code: Block) -> None:
        async def limited() -> None:
            if how == "timeout":
                async with asyncio.timeout(seconds):
                    await self.block(code)
            elif how == "wait_for":
                await asyncio.wait_for(self.block(code), seconds)
            elif how == "shield":
                await asyncio.wait_for(asyncio.shield(asyncio.create_task(self.block(code))), seconds)
            else:
                task = asyncio.create_task(self.block(code))
                async with asyncio.timeout(seconds):
                    await task

        await self.caught("limit", limited())

    async def do_finally(self, code: Block, behind: Block) -> None:
        try:
            await self.block(code)
        finally:
            await self.block(behind)

    # --- what tasks share

    async def do_put(self, queue: int, value: int) -> None:
        await self.queues[queue].put(value)

    async def do_get(self, queue: int, seconds: int) -> None:
        async def get() -> None:
            self.note("got", await asyncio.wait_for(self.queues[queue].get(), seconds))

        await self.caught("get", get())

    async def do_pump(self, name: str, queue: int, count: int) -> None:
        """Put signals into a queue."""
        for _ in range(count):
            await self.queues[queue].put(await self.wf.wait(name))

    async def do_set(self, event: int) -> None:
        self.events[event].set()

    async def do_clear(self, event: int) -> None:
        self.events[event].clear()

    async def do_event(self, event: int, seconds: int) -> None:
        async def wait() -> None:
            async with asyncio.timeout(seconds):
                await self.events[event].wait()
            self.note("event")

        await self.caught("event", wait())

    async def do_lock(self, lock: int, code: Block) -> None:
        async with self.locks[lock]:
            self.note("locked", lock)
            await self.block(code)
            if isinstance(self.locks[lock], asyncio.Condition):
                self.locks[lock].notify()

    async def do_context(self, text: str) -> None:
        self.note("context", TEXT.get())
        TEXT.set(text)


def plain(value: Any) -> Any:
    """What a task gave, for the log."""
    if isinstance(value, StepError):
        return value.code
    return type(value).__name__ if isinstance(value, BaseException) else value


STEP_S = 37
"""All times of programs are multiples of it; all other numbers are smaller."""


def apart(code: Any, seen: set[int]) -> Any:
    """Return a program in which no two timers take the same time."""
    if isinstance(code, list):
        return [apart(each, seen) for each in code]
    if isinstance(code, int) and code >= STEP_S:
        while code in seen:
            code += STEP_S
        seen.add(code)
    return code


def programs() -> strategies.SearchStrategy[Block]:
    """Programs by chance. No two timers take the same time, so that two runs of a program fire them in the same order."""
    number, key, name = strategies.integers(0, 9), strategies.integers(0, 2), strategies.sampled_from(NAMES)
    seconds = strategies.integers(1, 4000).map(lambda value: value * STEP_S)
    seconds_or_none = strategies.one_of(strategies.none(), seconds)
    pair, flag = strategies.integers(0, 1), strategies.booleans()

    def of(kind: str, *given: strategies.SearchStrategy[Any]) -> strategies.SearchStrategy[Statement]:
        return strategies.tuples(strategies.just(kind), *given).map(list)

    leaf = strategies.one_of(
        of("call", number),
        of("call", number),
        of("fail", number),
        of("sleep", seconds),
        of("wait", name, seconds_or_none),
        of("wait", name, strategies.none()),
        of("signals", name, strategies.integers(1, 3)),
        of("chance"),
        of("patch", name),
        of("yield"),
        of("future", key, strategies.one_of(strategies.none(), name)),
        of("callback", key),
        of("later", seconds),
        of("cancel", key),
        of("done", key),
        of("poll", key, strategies.integers(1, 5)),
        of("join", key),
        of("commands", strategies.lists(number, max_size=3)),
        of(
            "raw_race",
            strategies.lists(name, max_size=2, unique=True),
            strategies.lists(number, min_size=1, max_size=2),
            seconds,
        ),
        of("put", pair, number),
        of("get", pair, seconds),
        of("pump", name, pair, strategies.integers(1, 2)),
        of("set", pair),
        of("clear", pair),
        of("event", pair, seconds),
        of("context", name),
    )

    def nested(inner: strategies.SearchStrategy[Statement]) -> strategies.SearchStrategy[Statement]:
        block = strategies.lists(strategies.one_of(*[inner] * 9, of("boom")), min_size=1, max_size=3)
        blocks = strategies.lists(block, min_size=2, max_size=3)
        when = strategies.sampled_from(
            [asyncio.FIRST_COMPLETED, asyncio.FIRST_COMPLETED, asyncio.ALL_COMPLETED, asyncio.FIRST_EXCEPTION]
        )
        return strategies.one_of(
            of("start", key, block),
            of("gather", flag, flag, blocks),
            of("group", blocks),
            of("race", when, seconds_or_none, flag, blocks),
            of("completed", blocks),
            of("limit", seconds, strategies.sampled_from(["timeout", "wait_for", "shield", "task"]), block),
            of("finally", block, block),
            of("lock", strategies.integers(0, 3), block),
            of("child", block),
            of("again", block),
        )

    statement = strategies.one_of(leaf, nested(leaf), nested(strategies.one_of(leaf, nested(leaf))))
    return strategies.lists(statement, min_size=4, max_size=12).map(lambda code: cast(Block, apart(code, set())))
