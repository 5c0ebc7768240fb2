"""Replays of workflows that were cancelled: CancelledError comes once, where the code awaits, and at the same place in each replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from cantata.errors import StepError
from cantata.flows.definitions import Definitions
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.history import Activation, CommandOutcome
from cantata.flows.workflows.replay import Advance, Replay
from cantata.values import ErrorInfo

Main = Callable[[Workflow], Any]
STOPPED = CommandOutcome(error=ErrorInfo(code="stopped", message="the step was stopped"))


def work(mark: Any) -> Any:
    """Stand for a step."""
    return mark


class Recorded:
    """A workflow and its history: each call of `go_on` adds an activation, where the code waits or by a replay."""

    is_kept = False

    def __init__(self, main: Main) -> None:
        self._main = main
        self._replay: Replay | None = None
        self.history: list[Activation] = []
        self.outcomes: dict[int, CommandOutcome] = {}

    def go_on(self, outcomes: dict[int, Any] | None = None, *, cancelled: bool = False) -> Advance:
        """Receive outcomes; when it is cancelled, those of all other open commands too: they were stopped."""
        given = {
            index: each if isinstance(each, CommandOutcome) else CommandOutcome(each)
            for index, each in (outcomes or {}).items()
        }
        if cancelled:
            count = sum(len(each.commands) for each in self.history)
            given |= dict.fromkeys(set(range(count)) - self.outcomes.keys() - given.keys(), STOPPED)
        self.outcomes |= given
        replay = self._replay or Replay("run", Definitions(), self.history)
        advance: Advance | None = None
        try:
            advance = replay.run(
                lambda: self._main(Workflow(replay)),
                at=float(len(self.history)),
                outcomes=given if replay.is_waiting else self.outcomes,
                received=sorted(given),
                given={},
                cancelled=cancelled,
            )
        finally:
            self._replay = replay if self.is_kept and advance is not None and not advance.is_over else None
            if self._replay is None:
                replay.discard()
        self.history.append(advance.activation)
        return advance

    def discard(self) -> None:
        """Drop what is kept."""
        if self._replay is not None:
            self._replay.discard()

    def end(self, outcomes: dict[int, Any] | None = None, *, cancelled: bool = False) -> str:
        """Do the same for the last time: the code of its failure."""
        with pytest.raises(StepError) as raised:
            self.go_on(outcomes, cancelled=cancelled)
        return raised.value.code


@pytest.fixture(params=["replayed", "kept"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "is_kept", request.param == "kept")


async def finally_(wf: Workflow) -> None:
    """Clean up behind an await."""
    try:
        await wf.call(work, "x")
    finally:
        await wf.call(work, "clean")
        await wf.call(work, "up")


async def gathers(wf: Workflow) -> None:
    """Clean up behind a gather."""
    try:
        await wf.gather(wf.call(work, "x"), wf.call(work, "y"))
    finally:
        await wf.call(work, "clean")
        await wf.call(work, "up")


async def groups(wf: Workflow) -> None:
    """Clean up in a task of a group, and then behind it."""

    async def part() -> None:
        try:
            await wf.call(work, "x")
        finally:
            await wf.call(work, "clean")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())
    finally:
        await wf.call(work, "up")


async def times(wf: Workflow) -> None:
    """Clean up within a time-out, whose timer is stopped with the other steps."""
    async with asyncio.timeout(60):
        try:
            await wf.call(work, "x")
        finally:
            await wf.call(work, "clean")
            await wf.call(work, "up")


async def shields(wf: Workflow) -> None:
    """Shield what is awaited."""
    try:
        await asyncio.shield(wf.call(work, "x"))
    finally:
        await wf.call(work, "clean")
        await wf.call(work, "up")


async def in_the_background(wf: Workflow) -> None:
    """Clean up in a task that nobody awaits, while the code cleans up by itself."""

    async def part() -> None:
        try:
            await wf.sleep(60)
        finally:
            await wf.call(work, "clean")

    task = asyncio.create_task(part())
    try:
        await wf.call(work, "x")
    finally:
        with suppress(asyncio.CancelledError):
            await task
        await wf.call(work, "up")


@pytest.mark.parametrize("main", [finally_, gathers, groups, times, shields, in_the_background])
def test_it_is_raised_once_and_clean_up_goes_on(main: Main) -> None:
    run = Recorded(main)
    before = len(run.go_on().commands)

    cleans = run.go_on(cancelled=True)
    assert [each.recorded.digest for each in cleans.commands] != []
    assert (list(cleans.awaited), cleans.activation.cancelled) == ([before], True), (
        "it waits for nothing that was stopped"
    )
    ups = run.go_on({before: None})
    assert (list(ups.awaited), ups.activation.cancelled) == ([before + 1], False)
    assert run.end({before + 1: None}) == "cancelled"


@pytest.mark.parametrize("main", [finally_, gathers, groups, times, shields, in_the_background])
def test_each_part_of_the_history_is_replayed_equally(main: Main) -> None:
    run = Recorded(main)
    before = len(run.go_on().commands)
    run.go_on(cancelled=True)
    run.go_on({before: None})
    known = run.history

    for number, each in enumerate(known):
        replay = Replay("run", Definitions(), known[:number])
        again = replay.run(
            partial(main, Workflow(replay)),
            at=each.at,
            outcomes=run.outcomes,
            received=each.received,
            given={},
            cancelled=each.cancelled,
        )
        replay.discard()
        assert again.activation == each
    run.discard()


def test_code_that_goes_on_is_not_asked_again() -> None:
    async def swallows(wf: Workflow) -> str:
        with suppress(asyncio.CancelledError):
            await wf.call(work, "x")
        return str(await wf.call(work, "y"))

    run = Recorded(swallows)
    run.go_on()
    run.go_on(cancelled=True)

    assert run.go_on({1: "went on"}).output == "went on"


def test_what_was_over_by_then_has_its_outcome() -> None:
    async def keeps(wf: Workflow) -> list[Any]:
        one, two = wf.call(work, "x"), wf.call(work, "y")
        try:
            await wf.gather(one, two)
        except asyncio.CancelledError:
            return [one.result(), two.cancelled()]
        return []

    run = Recorded(keeps)
    run.go_on()

    assert run.go_on({0: "done"}, cancelled=True).output == ["done", True]


def test_a_stopped_command_is_told_to_who_awaits_it_later() -> None:
    async def later(wf: Workflow) -> list[Any]:
        asleep, other = wf.sleep(60), wf.call(work, "y")
        found: list[Any] = []
        with suppress(asyncio.CancelledError):
            await wf.call(work, "x")
        for each in (asleep, other):
            try:
                await each
            except StepError as error:
                found.append(error.code)
        return found

    run = Recorded(later)
    run.go_on()

    assert run.go_on(cancelled=True).output == ["stopped", "stopped"]


def test_code_that_fails_while_it_cleans_up_tells_why() -> None:
    async def fails(wf: Workflow) -> None:
        try:
            await wf.call(work, "x")
        finally:
            raise KeyError("lost")

    run = Recorded(fails)
    run.go_on()

    assert run.end(cancelled=True) == "workflow_error"


def test_code_that_cancels_itself_was_not_cancelled() -> None:
    async def cancels(wf: Workflow) -> None:
        raise asyncio.CancelledError

    assert Recorded(cancels).end() == "workflow_error"
