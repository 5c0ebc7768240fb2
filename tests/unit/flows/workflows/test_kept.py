"""Code of a workflow that goes on where it waits, without a replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import pytest

from cantata.errors import StepError
from cantata.flows.definitions import Definitions
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.conversion import arguments_of
from cantata.flows.workflows.history import CommandOutcome
from cantata.flows.workflows.replay import Replay

attempt: ContextVar[int] = ContextVar("attempt")
dropped: ContextVar[bool] = ContextVar("dropped", default=False)


def work(mark: Any) -> Any:
    """Stand for a step."""
    return mark


def waiting(main: Callable[[Workflow], Any]) -> tuple[Replay, Callable[..., Any]]:
    """A replay whose first activation is over, and a function for those that follow."""
    replay = Replay("run", Definitions(), [])
    go_on = partial(replay.run, partial(main, Workflow(replay)), at=1.0, given={})
    go_on(outcomes={}, received=[])
    return replay, go_on


def test_its_code_is_executed_once() -> None:
    begun = []

    async def row(wf: Workflow) -> int:
        begun.append(1)
        return sum([await wf.call(work, number) for number in range(3)])

    _, go_on = waiting(row)
    for index in range(2):
        assert len(go_on(outcomes={index: CommandOutcome(index + 1)}, received=[index]).commands) == 1

    assert go_on(outcomes={2: CommandOutcome(3)}, received=[2]).output == 6
    assert len(begun) == 1


def test_its_history_is_that_of_a_replay() -> None:
    async def row(wf: Workflow) -> int:
        first: int = await wf.call(work, 1)
        second: int = await wf.call(work, 2 if wf.patched("twice") else 3)
        return first + second

    kept, go_on = waiting(row)
    go_on(outcomes={0: CommandOutcome(10)}, received=[0])
    replay = Replay("run", Definitions(), kept.history[:1])
    replay.run(partial(row, Workflow(replay)), at=1.0, outcomes={0: CommandOutcome(10)}, received=[0], given={})

    assert replay.history == kept.history
    assert replay.commands == kept.commands
    assert kept.history[1].patches == ("twice",)
    for each in (kept, replay):
        each.discard()


def test_it_has_the_context_variables_of_its_present_attempt() -> None:
    async def reads(wf: Workflow) -> list[int]:
        before = attempt.get()
        await wf.call(work, 1)
        return [before, attempt.get()]

    attempt.set(1)
    _, go_on = waiting(reads)
    attempt.set(2)

    assert go_on(outcomes={0: CommandOutcome(1)}, received=[0]).output == [1, 2]


def test_a_variable_that_its_code_has_set_stays_its_own_in_each_task() -> None:
    async def sets(wf: Workflow, own: int | None) -> int:
        if own:
            attempt.set(own)
        await wf.call(work, own)
        return attempt.get()

    async def main(wf: Workflow) -> list[int]:
        found = [*await asyncio.gather(sets(wf, 10), sets(wf, 20), sets(wf, None)), attempt.get()]
        attempt.set(30)
        await wf.call(work, 1)
        return [*found, attempt.get()]

    attempt.set(1)
    _, go_on = waiting(main)
    for index in range(4):
        attempt.set(index)
        ended = go_on(outcomes={index: CommandOutcome(1)}, received=[index])

    assert ended.output == [10, 20, 2, 2, 30], "of its own, and of the caller at that time"


def test_a_variable_that_only_its_code_knew_stays_when_a_caller_has_one() -> None:
    async def sets(wf: Workflow) -> Any:
        known.set(None)
        await wf.call(work, 1)
        return known.get()

    known: ContextVar[Any] = ContextVar("known")
    _, go_on = waiting(sets)
    known.set("the caller's")

    assert go_on(outcomes={0: CommandOutcome(1)}, received=[0]).output is None


def test_what_the_code_does_when_it_is_dropped_has_no_effect() -> None:
    cleaned = []

    async def cleans(wf: Workflow) -> None:
        try:
            await wf.call(work, 1)
        finally:
            cleaned.append(1)
            await wf.call(work, 2)

    replay, _ = waiting(cleans)
    replay.discard()

    assert cleaned
    assert len(replay.commands) == 1
    assert not replay.is_waiting


def test_code_that_fails_waits_no_more() -> None:
    async def fails(wf: Workflow) -> None:
        raise ValueError(await wf.call(work, 1))

    replay, go_on = waiting(fails)
    with pytest.raises(StepError, match="ValueError: 7"):
        go_on(outcomes={0: CommandOutcome(7)}, received=[0])
    replay.discard()


def test_as_completed_of_coroutines_is_refused_with_what_to_write_instead() -> None:
    async def each(wf: Workflow, number: int) -> int:
        found: int = await wf.call(work, number)
        return found

    begun: list[Any] = []

    async def main(wf: Workflow) -> list[int]:
        begun.extend([each(wf, 1), each(wf, 2)])
        return [await first for first in asyncio.as_completed(begun)]

    with pytest.raises(StepError, match=r"give it tasks, as in asyncio.as_completed\(\[asyncio.create_task"):
        waiting(main)
    for coroutine in begun:
        coroutine.close()


def test_as_completed_of_tasks_gives_the_commands_in_order() -> None:
    async def each(wf: Workflow, number: int) -> int:
        found: int = await wf.call(work, number)
        return found

    async def main(wf: Workflow) -> list[int]:
        tasks = [asyncio.create_task(each(wf, number)) for number in range(5)]
        return [await first for first in asyncio.as_completed(tasks)]

    replay, go_on = waiting(main)

    assert [command.step for command in replay.commands] == [f"{number}.work" for number in range(5)]
    assert go_on(outcomes={index: CommandOutcome(index) for index in range(5)}, received=[*range(5)]).output == [
        0,
        1,
        2,
        3,
        4,
    ]


@dataclass
class Basket:
    items: list[int] = field(default_factory=list)


def test_a_mutable_default_is_each_runs_own() -> None:
    async def main(
        wf: Workflow,
        found: list[int] = [],  # noqa: B006  # that is the point
        basket: Basket = Basket(),  # noqa: B008  # as above
        lock: Any = Lock(),  # noqa: B008  # as above
        name: str = "x",
    ) -> None:
        """Take defaults of all sorts."""

    for _ in range(2):
        given = arguments_of(main, {})
        assert given == {"found": [], "basket": Basket()}, "what cannot be copied or changed is left to Python"
        given["found"].append(1)
        given["basket"].items.append(1)
    assert arguments_of(main, {"found": [2]})["found"] == [2]


def test_a_variable_that_code_sets_while_it_is_dropped_is_of_no_other_run() -> None:
    async def flow(wf: Workflow) -> None:
        try:
            await wf.call(work, 1)
        finally:
            dropped.set(True)

    kept, _ = waiting(flow)

    kept.discard()

    assert dropped.get() is False
