"""Calls that wait for a permit: what they cost while they do, who goes next, and who gives up its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from redis import Redis

from cantata.engine import permit_wakeups
from cantata.engine.limits.limiter import LIMITS_KEY, Ask, Granted, Limiter, Wait, read_usage
from cantata.flows.definitions import Limits, Rates
from cantata.flows.graph import Outcome
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun, Ready
from tests.integration.state.invariants import check_all
from tests.integration.state.play import Play, work

MODEL = "openai/gpt-4o-mini"
ONE_A_MINUTE = Limits(models={MODEL: Rates(rpm=1)})
ONE_AT_ONCE = Limits(models={MODEL: Rates(concurrency=1)})


class Fleet:
    """Workers that ask for permits as ours do, and the sweep."""

    def __init__(self, redis: Redis) -> None:
        self.ledger = Ledger(redis)
        self.limiter = Limiter(self.ledger)

    def asks(self, play: Play, step: str, limits: Limits) -> tuple[Begun, Granted | Wait]:
        """Begin a step, and have it ask; if it must wait, that is recorded."""
        begun = play.begin(step)
        answer = self.limiter.take(Ask(begun.lease, MODEL, 1), limits)
        assert isinstance(answer, Granted | Wait)
        if isinstance(answer, Wait):
            detail: Any = {"reason": answer.reason}
            outcome = Outcome(status="wait", retry_in_s=answer.seconds)
            self.ledger.steps.commit(begun, outcome, output="null", info=detail)
        return begun, answer

    def waits(self, play: Play, steps: Sequence[str], limits: Limits) -> None:
        """Have steps wait."""
        for step in steps:
            assert isinstance(self.asks(play, step, limits)[1], Wait)

    def hurry(self) -> None:
        """Let it be time to look for all that wait."""
        redis = self.ledger.redis
        for key in redis.scan_iter("cantata:*:due"):
            redis.zadd(
                key,
                {member: 1.0 for member in cast("list[str]", redis.zrange(key, 0, -1)) if member.startswith("permit|")},
                xx=True,
            )

    def sweep(self) -> list[str]:
        """Look for those that wait, as the sweep does; answers the steps to send."""
        swept = self.ledger.leases.sweep_all()
        waiting = [ticket for each in swept for ticket in each.waiting]
        return names(
            permit_wakeups.sweep(self.ledger, self.limiter, waiting, [ticket for each in swept for ticket in each.left])
        )

    def ends(self, begun: Begun) -> list[str]:
        """A call ends; answers the steps to send."""
        return names(
            permit_wakeups.wake(self.ledger, self.limiter, self.limiter.settle(begun.lease, tokens=1, usd=None))
        )


def names(sends: Sequence[tuple[str, Ready]]) -> list[str]:
    return [ready.step_id for _, ready in sends]


def steps(number: int) -> list[str]:
    return [f"s{n:03}" for n in range(number)]


@pytest.fixture
def fleet(valkey: Redis) -> Iterator[Fleet]:
    """A fleet without runs; what a test leaves must be sound."""
    valkey.flushdb()
    yield Fleet(valkey)
    check_all(valkey)


def test_calls_that_wait_write_one_event_however_often_they_are_looked_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(fleet.ledger)
    play.plan(work("first"), *map(work, steps(150)))
    fleet.asks(play, "first", ONE_A_MINUTE)
    fleet.waits(play, steps(150), ONE_A_MINUTE)
    assert play.events("s149") == ["started", "rate_limited"]
    trips: list[str] = []
    fleet.hurry()
    fleet.sweep()  # Redis knows the scripts by now

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **more: Any) -> Any:
            trips.append(name)
            return call(*args, **more)

        return count

    for name in ("execute_command", "pipeline"):
        monkeypatch.setattr(fleet.ledger.redis, name, counted(name, getattr(fleet.ledger.redis, name)))
    for _ in range(3):
        fleet.hurry()
        trips.clear()
        assert fleet.sweep() == []
        assert len(trips) <= 6, "the sweep, and two calls of the limits"

    assert play.events("s000") == play.events("s149") == ["started", "rate_limited"]


def test_those_whose_turn_it_is_are_sent_and_no_more(fleet: Fleet) -> None:
    play = Play(fleet.ledger)
    play.plan(*map(work, steps(5)))
    (first, _), (second, _) = (fleet.asks(play, step, two_at_once()) for step in steps(2))
    fleet.waits(play, steps(5)[2:], two_at_once())

    assert fleet.ends(first) == ["s002"]
    fleet.hurry()
    assert fleet.sweep() == [], "room is kept for who was sent"
    assert fleet.ends(second) == ["s003"]

    assert fleet.asks(play, "s003", two_at_once())[1] == Granted()
    assert fleet.asks(play, "s002", two_at_once())[1] == Granted()
    assert play.events("s002") == ["started", "rate_limited", "started"]


def two_at_once() -> Limits:
    return Limits(models={MODEL: Rates(concurrency=2)})


def test_one_that_waits_again_for_the_same_reason_is_told_once(fleet: Fleet) -> None:
    play = Play(fleet.ledger)
    play.plan(work("first"), work("a"))
    fleet.asks(play, "first", ONE_A_MINUTE)
    for _ in range(3):
        fleet.waits(play, ["a"], ONE_A_MINUTE)
        fleet.ledger.steps.wake_all(["run|a"])

    assert play.events("a").count("rate_limited") == 1


def test_a_run_that_is_cancelled_leaves_the_queue_with_the_next_sweep(fleet: Fleet) -> None:
    play, other, last = Play(fleet.ledger), Play(fleet.ledger, "other"), Play(fleet.ledger, "last")
    play.plan(work("first"))
    other.plan(*map(work, steps(30)))
    last.plan(work("last"))
    fleet.asks(play, "first", ONE_A_MINUTE)
    fleet.waits(other, steps(30), ONE_A_MINUTE)
    fleet.waits(last, ["last"], ONE_A_MINUTE)

    fleet.ledger.runs.cancel("other")
    fleet.sweep()

    assert read_usage(fleet.ledger.redis, [MODEL]).models[MODEL].waiting == 1
    assert fleet.ledger.redis.hkeys(f"cantata:{LIMITS_KEY}:tickets") == ["last|last"]


def test_one_that_was_sent_and_whose_run_is_over_gives_its_turn_to_the_next(fleet: Fleet) -> None:
    play, other = Play(fleet.ledger), Play(fleet.ledger, "other")
    play.plan(work("first"), work("last"))
    other.plan(work("gone"))
    first, _ = fleet.asks(play, "first", ONE_AT_ONCE)
    fleet.waits(other, ["gone"], ONE_AT_ONCE)
    fleet.waits(play, ["last"], ONE_AT_ONCE)
    fleet.ledger.runs.cancel("other")

    assert fleet.ends(first) == ["last"]


def test_one_that_nobody_knows_of_in_the_limits_asks_anew(fleet: Fleet) -> None:
    play = Play(fleet.ledger)
    play.plan(work("first"), work("a"))
    fleet.asks(play, "first", ONE_A_MINUTE)
    fleet.waits(play, ["a"], ONE_A_MINUTE)
    fleet.ledger.redis.delete(*fleet.ledger.redis.scan_iter(f"cantata:{LIMITS_KEY}*"))

    fleet.hurry()
    assert fleet.sweep() == ["a"]
    assert fleet.asks(play, "a", ONE_A_MINUTE)[1] == Granted()


def test_one_that_was_called_before_its_wait_was_recorded_is_called_again(fleet: Fleet) -> None:
    play = Play(fleet.ledger)
    play.plan(work("first"), work("a"))
    first, _ = fleet.asks(play, "first", ONE_AT_ONCE)
    begun = play.begin("a")
    assert isinstance(fleet.limiter.take(Ask(begun.lease, MODEL, 1), ONE_AT_ONCE), Wait)

    assert fleet.ends(first) == [], "it is still under way"
    fleet.ledger.steps.commit(begun, Outcome(status="wait", retry_in_s=1), output="null", info={})
    fleet.hurry()

    assert fleet.sweep() == ["a"]
    assert fleet.asks(play, "a", ONE_AT_ONCE)[1] == Granted()


def test_all_that_may_go_are_sent_by_one_sweep(fleet: Fleet) -> None:
    many = Limits(models={MODEL: Rates(rpm=100_000)})
    play = Play(fleet.ledger)
    play.plan(*map(work, steps(250)))
    fleet.limiter.pause(MODEL, 0.3)
    fleet.waits(play, steps(250), many)
    time.sleep(0.35)

    assert sorted(fleet.sweep()) == steps(250)
