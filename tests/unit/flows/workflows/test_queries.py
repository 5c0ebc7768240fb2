"""Queries of a workflow's code, asked of a replay: what they may do, and what is told if they do something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cantata.errors import ConfigError, StepError
from cantata.flows.definitions import Definitions
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.history import CommandOutcome
from cantata.flows.workflows.replay import NonDeterminismError, Replay


def work(mark: int) -> int:
    """Stand for a step."""
    return mark


async def flow(wf: Workflow) -> int:
    """Register queries of all kinds, and call a step."""
    seen: list[int] = []

    @wf.query
    def state() -> list[int]:
        return seen

    @wf.query
    def gives() -> Any:
        return wf.call(work, 1)

    @wf.query
    def breaks() -> Any:
        return dict[str, int]()["key"]

    @wf.query
    def strange() -> object:
        return object()

    seen.append(await wf.call(work, 1))
    return len(seen)


async def longer(wf: Workflow) -> int:
    """Wait where `flow` ends."""
    return await flow(wf) + int(await wf.call(work, 2))


def recorded(main: Callable[[Workflow], Any]) -> Replay:
    """Execute a workflow, whose one step gives 7, to its end or as far as that leads."""
    replay = Replay("run", Definitions(), [])
    for received in ((), (0,)):
        outcomes = {index: CommandOutcome(7) for index in received}
        replay.run(lambda: main(Workflow(replay)), at=1.0, outcomes=outcomes, received=received, given={})
    replay.discard()
    return replay


def restored(before: Replay, main: Callable[[Workflow], Any], count: int, *, ended: bool) -> Replay:
    """Replay the first activations of a history."""
    replay = Replay("run", Definitions(), before.history[:count])
    replay.restore(lambda: main(Workflow(replay)), {0: CommandOutcome(7)}, ended=ended)
    return replay


def test_a_query_sees_the_code_where_it_waits_and_where_it_ended() -> None:
    before = recorded(flow)

    assert [restored(before, flow, count, ended=count == 2).ask("state", {}) for count in (1, 2)] == [[], [7]]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("stat", ConfigError, "the workflow has no query 'stat' here; did you mean 'state'?"),
        (
            "gives",
            StepError,
            "a query gives no commands, it only reads, and this one gave call 'tests.unit.flows.workflows.test_queries:work'",
        ),
        ("breaks", StepError, "query 'breaks' raised KeyError: 'key' (at test_queries.py:"),
        ("strange", StepError, "the answer of query 'strange' is not JSON"),
    ],
)
def test_a_query_that_fails_says_so(name: str, error: type[Exception], message: str) -> None:
    replay = restored(recorded(flow), flow, 1, ended=False)

    with pytest.raises(error) as raised:
        replay.ask(name, {})

    assert message in str(raised.value)


def test_a_query_is_no_coroutine() -> None:
    async def asks(wf: Workflow) -> None:
        @wf.query
        async def state() -> int:
            return 1

    replay = Replay("run", Definitions(), [])

    with pytest.raises(StepError, match="query 'state' is async: it only reads, so write `def` without async"):
        replay.run(lambda: asks(Workflow(replay)), at=1.0, outcomes={}, received=(), given={})


def test_code_that_ends_elsewhere_does_not_follow_the_history() -> None:
    async def stays(wf: Workflow) -> None:
        await flow(wf)
        await asyncio.get_running_loop().create_future()

    before = recorded(flow)
    with pytest.raises(NonDeterminismError, match="the code ended after command 0, and now waits there"):
        restored(before, stays, 2, ended=True)
    with pytest.raises(NonDeterminismError, match=r"command 0, .*, and now gives call .* before that"):
        restored(before, longer, 2, ended=True)
    with pytest.raises(NonDeterminismError, match="and now the code ended without it"):
        restored(recorded(longer), flow, 2, ended=False)
