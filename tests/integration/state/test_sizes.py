"""What runs and sessions take of Redis's memory is estimated from some of them."""

from __future__ import annotations

import pytest
from redis import Redis

from cantata.engine.fleet import sizes
from cantata.engine.fleet.sizes import Sizes
from cantata.ledger.ledger import Ledger
from tests.integration.state.play import Play, row, work
from tests.integration.state.test_listing import accept


def taken(redis: Redis) -> int:
    """What the keys of runs and sessions take, each measured."""
    keys = [key for part in ("run", "session") for key in redis.scan_iter(f"cantata:{{*}}:{part}:*")]
    return sum(redis.memory_usage(key, samples=0) or 0 for key in keys)


def test_of_a_few_it_is_what_they_take(ledger: Ledger) -> None:
    assert Sizes().estimate(ledger.redis) == 0.0

    accept(ledger, "large", text="x" * 100_000, session="chat")

    assert Sizes().estimate(ledger.redis) == taken(ledger.redis) > 100_000


def test_of_many_it_is_near_to_what_they_take(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "EVERY_S", 0.0)
    for number in range(400):
        accept(ledger, f"run-{number}", text="x" * (number % 5 * 2000))
    measured = Sizes()

    estimates = [measured.estimate(ledger.redis) for _ in range(sizes.ROUNDS)]

    assert estimates[-1] == pytest.approx(taken(ledger.redis), rel=0.2)  # 512 measures: a deviation of 2.5 %


def test_they_are_measured_again_after_a_time_only(ledger: Ledger) -> None:
    measured = Sizes()
    assert measured.estimate(ledger.redis) == 0.0

    accept(ledger, "late")

    assert measured.estimate(ledger.redis) == 0.0


def test_a_finished_run_of_ten_steps_takes_less_than_7_kb(ledger: Ledger) -> None:
    play, steps = Play(ledger), [f"s{number}" for number in range(10)]
    play.plan(*map(work, steps), edges=row(*steps), terminals=("s9",))

    for step in steps:
        play.do(step, 1)

    assert play.status == "succeeded"
    assert taken(ledger.redis) < 7000
