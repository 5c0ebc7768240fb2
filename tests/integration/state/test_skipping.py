"""Time that is skipped: what is kept for later comes nearer, what is promised to those who live does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cantata.engine.fleet import registry
from cantata.engine.fleet.clock_skip import bring_nearer, skip
from cantata.engine.fleet.registry import Worker
from cantata.engine.limits.limiter import LIMITS_KEY, Ask, Limiter, Wait, paused_models
from cantata.errors import ConfigError, UnavailableError
from cantata.features.memory import cache
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.sessions.sessions import Sessions
from cantata.flows.graph import Outcome
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunSession
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import connect
from cantata.ledger.redis.keys import definitions_key, run_key, shard_key, shard_of
from tests.integration.state.limits_stage import MODEL, holder, on_model
from tests.integration.state.play import Play, failed, row, sent, wait, work

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def test_a_timer_is_due_when_its_time_was_skipped_and_not_before(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=DAY_S)
    play.plan(wait("ask", timeout_s=DAY_S), work("then"), edges=row("ask", "then"))

    bring_nearer(ledger.redis, DAY_S - 60)
    assert (sent(play.sweep()), play.words("ask")) == ([], "waiting_signal")

    bring_nearer(ledger.redis, 60)
    assert (sent(play.sweep()), play.words("ask")) == (["then"], "done")


def test_a_step_that_waits_for_its_next_try_has_it(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=DAY_S)
    play.plan(work("a"))
    play.commit(play.begin("a"), outcome=Outcome(status="retry", error=failed().error, retry_in_s=HOUR_S))

    bring_nearer(ledger.redis, HOUR_S)

    assert sent(play.sweep()) == ["a"]


def test_a_join_goes_on_without_the_late_and_a_run_past_its_deadline_is_over(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=2 * HOUR_S)
    play.plan(work("a"), work("join", deadline_s=HOUR_S), edges=row("a", "join"))

    bring_nearer(ledger.redis, HOUR_S)
    assert (sent(play.sweep()), play.status) == (["join"], "running")

    bring_nearer(ledger.redis, HOUR_S)
    assert (play.sweep().ended, play.status) == ((play.run_id,), "timed_out")


def test_a_parked_run_has_the_time_left_that_it_had(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=2 * HOUR_S)
    play.plan(work("first"), wait("ask"), work("then"), edges=row("first", "ask", "then"))
    bring_nearer(ledger.redis, HOUR_S)
    play.do("first")

    bring_nearer(ledger.redis, DAY_S)  # while it only waits for a person
    ledger.steps.signal(play.run_id, "ask", 1)
    bring_nearer(ledger.redis, HOUR_S - 60)
    assert (play.sweep().ended, play.words("ask", "then")) == ((), "done sent")

    bring_nearer(ledger.redis, 60)
    assert play.sweep().ended == (play.run_id,)


def test_leases_messages_and_announcements_of_those_who_live_stay_as_they_are(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=2 * DAY_S)
    play.plan(work("held"), work("sent"))
    begun = play.begin("held")
    registry.announce(
        ledger.redis,
        Worker(name="w", queues=("tools",), concurrency=1, pid=1, host="here", version="1", started_at=0.0),
    )

    bring_nearer(ledger.redis, DAY_S)
    swept = play.sweep()

    assert (swept.lost, swept.overdue, swept.sends) == (0, (), ())
    assert ledger.leases.renew([begun.lease]) == set()
    assert [worker.name for worker in registry.workers(ledger.redis)] == ["w"]
    assert play.commit(begun).result == "ok"


def test_what_is_skipped_is_over_and_the_clock_stays(ledger: Ledger) -> None:
    bring_nearer(ledger.redis, DAY_S)

    play = Play(ledger, timeout_s=HOUR_S)
    play.plan(wait("ask", timeout_s=60))

    assert (play.sweep().ended, play.words("ask")) == ((), "waiting_signal")
    record = ledger.reader.read(play.run_id)
    assert abs(record.created_at_ms / 1000 - ledger.redis.time()[0]) < 60


def test_another_namespace_on_the_same_redis_is_not_touched(ledger: Ledger) -> None:
    options = ledger.redis.connection_pool.connection_kwargs
    production = connect(f"unix://{options['path']}", namespace="production")
    theirs = Play(Ledger(production), timeout_s=HOUR_S)
    timers = f"{shard_key(production, shard_of('run'))}:due"
    before = production.zrange(timers, 0, -1, withscores=True)

    bring_nearer(ledger.redis, DAY_S)

    assert before
    assert production.zrange(timers, 0, -1, withscores=True) == before
    assert Ledger(production).leases.sweep(shard_of("run")).ended == ()
    Ledger(production).runs.cancel(theirs.run_id)
    production.close()


def test_runs_and_their_definitions_go_with_their_retention(ledger: Ledger) -> None:
    play = Play(ledger, retention_s=DAY_S)
    play.plan(work("a"))
    definitions = definitions_key(None, shard_of("run"), ledger.runs.request_of("run")[2])
    ledger.runs.cancel("run")

    bring_nearer(ledger.redis, DAY_S - 60)
    play.sweep()
    assert ledger.runs.is_known("run")

    bring_nearer(ledger.redis, 60)
    play.sweep()
    assert not ledger.runs.is_known("run")
    assert ledger.reader.newest() == []
    assert list(ledger.redis.scan_iter(f"{run_key(None, 'run')}*")) == []
    assert not ledger.redis.exists(definitions)


def test_a_conversation_goes_with_its_retention(ledger: Ledger) -> None:
    place = RunSession(name="ann/chat", keep_s=DAY_S, max_entries=100, max_waiting=10)
    run_id = next(f"turn-{n}" for n in range(10_000) if shard_of(f"turn-{n}") == shard_of(place.name))
    play = Play(ledger, run_id, timeout_s=DAY_S, text="hello", session=place)
    bring_nearer(ledger.redis, HOUR_S / 2)  # an open turn keeps it
    ledger.runs.cancel(run_id)

    bring_nearer(ledger.redis, DAY_S - 60)
    assert len(Sessions(ledger, "ann").history("chat")) == 2

    bring_nearer(ledger.redis, 60)
    assert Sessions(ledger, "ann").history("chat") == []
    play.sweep()


def test_memories_and_cached_replies_go_when_their_time_was_skipped(ledger: Ledger) -> None:
    bank = MemoryStore(ledger, tenant="acme")
    for key, ttl_s in (("short", 60), ("long", DAY_S), ("lasting", None)):
        bank.store_memory(key, key, ttl_s=ttl_s)
        bank.of(session="chat").store_memory(key, key, "namespaces", ttl_s=ttl_s)
    cache.remember(ledger.redis, "acme", "request", "reply", ttl_s=HOUR_S)

    bring_nearer(ledger.redis, HOUR_S)

    assert bank.list_memories() == ["lasting", "long"]
    assert bank.of(session="chat").list_memories("namespaces") == ["lasting", "long"]
    assert cache.recall(ledger.redis, "acme", "request") is None
    bring_nearer(ledger.redis, DAY_S)
    assert (bank.list_memories(), bank.namespaces()) == (["lasting"], ["default"])


def test_a_pause_that_a_provider_asked_for_is_over_and_what_a_limit_counted_stays(ledger: Ledger) -> None:
    limiter, limits = Limiter(ledger), on_model(rpm=1)
    limiter.pause(MODEL, HOUR_S)
    paused = limiter.take(Ask(holder("a"), MODEL, 1, None, ""), limits)
    assert isinstance(paused, Wait)
    assert paused.reason == "pause"

    bring_nearer(ledger.redis, HOUR_S)

    assert limiter.sweep() == ["run|a"]
    assert not isinstance(limiter.take(Ask(holder("a"), MODEL, 1, None, ""), limits), Wait)
    after = limiter.take(Ask(holder("b"), MODEL, 1, None, ""), limits)
    assert isinstance(after, Wait)
    assert after.reason == "rpm"
    bring_nearer(ledger.redis, 10.0)
    assert [ledger.redis.exists(f"cantata:{LIMITS_KEY}:{key}") for key in ("active", f"model:{MODEL}:rpm")] == [1, 1]


def test_half_a_pause_leaves_the_other_half(ledger: Ledger) -> None:
    limiter = Limiter(ledger)
    limiter.pause(MODEL, HOUR_S)

    bring_nearer(ledger.redis, HOUR_S / 2)

    (paused,) = paused_models(ledger.redis)
    assert HOUR_S / 2 - 60 < paused.until - clock.now() <= HOUR_S / 2


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, math.nan, math.inf, 1e12, True, "60", None])
def test_a_time_that_is_none_is_refused(ledger: Ledger, seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"the seconds to be skipped are a number from 0\.001 to 3153600000, not"):
        bring_nearer(ledger.redis, seconds)


def test_a_skip_that_nobody_sweeps_after_is_told(ledger: Ledger) -> None:
    Play(ledger, timeout_s=60)

    with pytest.raises(UnavailableError, match=r"were not handled within 0\.05 s: no worker of this stack sweeps"):
        skip(ledger.redis, 60, patience_s=0.05)


def test_a_skip_returns_without_anybody_if_nothing_is_due(ledger: Ledger) -> None:
    Play(ledger, timeout_s=DAY_S)

    skip(ledger.redis, HOUR_S, patience_s=0.0)
