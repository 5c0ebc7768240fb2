"""A Redis that evicts what expires (maxmemory-policy volatile-*) takes nothing from an open run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from redis import Redis

from cantata.features.forks import fork_store
from cantata.features.forks import rewind as planning
from cantata.flows.graph import Graph
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunSession
from cantata.ledger.redis.connection import check
from cantata.ledger.redis.keys import definitions_key, shard_of
from tests.integration.state.play import Play, row, work

CHAT = RunSession(name="ann/chat", keep_s=60, max_entries=100, max_waiting=10)


def expiring(redis: Redis) -> list[str]:
    """The keys that a Redis may evict."""
    return [key for key in cast("Iterator[str]", redis.scan_iter(count=1000)) if redis.pttl(key) != -1]


def definitions_of(play: Play) -> str:
    """The key of what a run was told to do."""
    return definitions_key(None, shard_of(play.run_id), play.ledger.runs.request_of(play.run_id)[2])


def beside(run_id: str, count: int) -> list[str]:
    """Ids of runs in the shard of another."""
    return [other for n in range(10_000) if shard_of(other := f"other-{n}") == shard_of(run_id)][:count]


def test_no_key_that_an_open_run_needs_expires(ledger: Ledger) -> None:
    play = Play(ledger, text="hello", session=CHAT)
    play.plan(work("a"), work("b"), edges=row("a", "b"), terminals=("b",))
    play.do("a", "x" * 50_000, fragment=Graph(steps=(work("c"), work("d")), edges=row("c", "d"), exit="d"))
    ledger.steps.signal("run", "w", 1)
    ledger.runs.append_log("run", ["{}"], most=10, most_bytes=1000)

    assert expiring(ledger.redis) == []


def test_a_conversation_expires_only_when_no_turn_of_it_is_open(ledger: Ledger) -> None:
    ids = beside(CHAT.name, 3)
    first, second = Play(ledger, ids[0], text="one", session=CHAT), Play(ledger, ids[1], text="two", session=CHAT)
    history = f"{first.shard}:session:{CHAT.name}:history"

    ledger.runs.cancel(first.run_id)
    assert ledger.redis.pttl(history) == -1

    ledger.runs.cancel(second.run_id)
    assert ledger.redis.pttl(history) > 0

    third = Play(ledger, ids[2], text="three", session=CHAT)
    assert ledger.redis.pttl(history) == -1
    ledger.runs.cancel(third.run_id)
    assert ledger.redis.pttl(history) > 0


def test_definitions_expire_with_the_last_run_that_may_be_forked(ledger: Ledger) -> None:
    key = definitions_of(Play(ledger, retention_s=5000))
    ledger.runs.cancel("run")
    kept_ms = ledger.redis.pttl(key)
    assert 4_000_000 < kept_ms <= 5_000_000

    (other,) = beside("run", 1)
    Play(ledger, other, retention_s=10)
    assert ledger.redis.pttl(key) == -1
    ledger.runs.cancel(other)

    assert 4_000_000 < ledger.redis.pttl(key) <= kept_ms


def test_a_fork_holds_its_definitions(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    ledger.runs.cancel("run")
    assert ledger.redis.pttl(definitions_of(play)) > 0

    fork = planning.fork(fork_store.read(ledger, "run"), "a")
    (anew,) = beside("run", 1)
    fork_store.make(ledger, anew, fork, request={}, given=None, labels={})

    assert ledger.redis.pttl(definitions_of(play)) == -1


@pytest.fixture
def full(valkey: Redis) -> Iterator[Redis]:
    """A server that is about to be full, and evicts what expires."""
    valkey.flushdb()
    before = {name: str(valkey.config_get(name)[name]) for name in ("maxmemory", "maxmemory-policy")}
    valkey.config_set("maxmemory-policy", "volatile-lru")
    valkey.config_set("maxmemory", int(valkey.info("memory")["used_memory"]) + 3_000_000)
    yield valkey
    for name, value in before.items():
        valkey.config_set(name, value)


def test_an_open_run_ends_well_though_redis_evicts(full: Redis) -> None:
    ledger = Ledger(full)
    play = Play(ledger)
    play.plan(work("a"), work("b", reads={"a": "a"}), edges=row("a", "b"), terminals=("b",))
    play.do("a", "found")
    evicted = int(full.info("stats")["evicted_keys"])

    for n in range(100):
        full.set(f"finished:{n}", "x" * 100_000, ex=3600)

    assert int(full.info("stats")["evicted_keys"]) > evicted
    begun = play.begin("b")
    assert begun.inputs == {"a": "found"}
    assert ledger.runs.definitions("run", begun.definitions) == "{}"
    assert play.commit(begun, "said").run_status == "succeeded"
    assert [why for why in check(full) if "volatile-lru" in why], "it is told"
