"""The registry of workers: announcements, and the capacity that is published for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from cantata.engine.fleet import registry
from cantata.engine.fleet.registry import CALLS_A_SECOND, CAPACITY_KEY, MAX_INTERVAL_S, Worker
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import key_of


@pytest.fixture(autouse=True)
def _empty(valkey: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_workers", 0)
    valkey.flushdb()
    clock.synchronize(valkey)
    yield
    valkey.flushdb()


def worker(name: str, *queues: str, pid: int = 1) -> Worker:
    return Worker(name=name, queues=queues, concurrency=2, pid=pid, host="here", version="1.0.0", started_at=1.0)


def reads_of_all(valkey: Redis) -> int:
    """How often a whole hash was read."""
    return int(valkey.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])


def test_slots_are_read_from_what_the_sweeper_publishes_not_from_all_workers(valkey: Redis) -> None:
    registry.announce(valkey, worker("one", "tools"))
    registry.announce(valkey, worker("two", "tools", "gpu"))
    registry.publish_capacity(valkey)
    before = reads_of_all(valkey)

    assert registry.published_slots(valkey) == {"tools": 4, "gpu": 2}
    assert reads_of_all(valkey) == before
    assert 0 < valkey.pttl(key_of(valkey, CAPACITY_KEY)) <= registry.STALE_S * 1000


def test_slots_are_those_of_the_registry_while_nobody_sweeps(valkey: Redis) -> None:
    registry.announce(valkey, worker("one", "tools"))

    assert registry.published_slots(valkey) == {"tools": 2}


def test_a_worker_that_announces_itself_learns_of_another_with_its_name(valkey: Redis) -> None:
    assert registry.announce(valkey, worker("one", "tools")) == ""
    assert registry.announce(valkey, worker("one", "tools")) == ""
    assert registry.announce(valkey, worker("one", "tools", pid=2)) == "process 1 of here"
    assert [each.pid for each in registry.workers(valkey)] == [2]


@pytest.mark.parametrize(("workers", "interval_s"), [(3, 0.5), (100, 0.5), (600, 3.0), (100_000, MAX_INTERVAL_S)])
def test_the_larger_the_fleet_the_less_often_each_worker_calls(valkey: Redis, workers: int, interval_s: float) -> None:
    valkey.set(key_of(valkey, CAPACITY_KEY), f'{{"workers": {workers}, "slots": {{}}}}')

    registry.announce(valkey, worker("one", "tools"))

    assert registry.interval_s(0.5) == interval_s
    assert registry.interval_s(0.5) >= min(MAX_INTERVAL_S, workers / CALLS_A_SECOND)
    assert registry.interval_s(1.0, 2.0) == min(2.0, max(1.0, workers / CALLS_A_SECOND))
