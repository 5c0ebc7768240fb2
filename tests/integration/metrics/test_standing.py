"""How the fleet stands, as it lies in Redis."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from cantata.engine.dispatch import celery_app, queues
from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.fleet import load, registry
from cantata.engine.fleet.load import Waiting
from cantata.engine.fleet.registry import Worker
from cantata.flows.canvas import MessageHead
from cantata.flows.graph import START, Graph, ItemSteps, Step
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun
from cantata.ledger.redis.keys import key_of, shard_key, shard_of
from cantata_workers.process.duties import sweep_once
from tests.integration.state.play import Play


def serve(valkey: Redis, name: str, *queues: str) -> str:
    """Announce a worker; the name of a process of it that leases steps."""
    worker = Worker(name=name, queues=queues, concurrency=4, pid=1, host="h", version="1", started_at=time.time())
    registry.announce(valkey, worker)
    return f"{name}#17~ab12"


def like(queue: str, step_id: str) -> Step:
    return Step(id=step_id, kind="work", queue=queue)


def test_leases_count_for_the_queue_of_their_step(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger)
    items = ItemSteps(like="m/spec", prefix="m", given=(1, 2), window=5)
    steps = (like("tools", "a"), like("gpu", "b"), like("gpu", "c"), like("gpu", "m/spec"))
    play.do(START, fragment=Graph(steps=steps, items=items))
    both, one = serve(valkey, "both@h", "tools", "gpu"), serve(valkey, "one@h", "gpu")
    for step_id, owner in {"a": both, "b": both, "c": one, "m/0": both, "m/1": "gone@h#3~ff"}.items():
        assert isinstance(ledger.steps.begin(play.run_id, step_id, owner), Begun), step_id

    standing = load.measure(valkey)

    assert standing.leased == {"tools": 1, "gpu": 4}, "items share a spec; a worker may be gone"
    assert load.queues(standing, {"gpu": Waiting(3, 1.0)})["gpu"].work == 7
    assert {worker.name for worker in standing.workers} == {"both@h", "one@h"}
    ledger.runs.cancel(play.run_id)


def test_queues_that_only_steps_name_are_found(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger)
    play.plan(like("nobodys", "a|b"))

    assert load.list_ready_queues(valkey) == {"nobodys"}
    ledger.runs.cancel(play.run_id)


def test_runs_and_steps_are_counted_through_their_life(ledger: Ledger, valkey: Redis) -> None:
    def told() -> tuple[int, int, int, dict[str, int]]:
        found = load.measure(valkey)
        return found.runs_open, found.runs_kept, found.steps_ready, dict(found.totals)

    assert told() == (0, 0, 0, {})
    play = Play(ledger)
    other = Play(ledger, run_id="other")
    assert told() == (2, 2, 2, {"accepted": 2})

    ledger.runs.cancel(other.run_id)
    play.plan(like("tools", "a"))
    assert told() == (1, 2, 1, {"accepted": 2, "closed:cancelled": 1})

    play.do("a")
    assert told() == (0, 2, 0, {"accepted": 2, "closed:cancelled": 1, "closed:succeeded": 1})


def test_a_lease_that_ran_out_is_counted_with_its_recovery(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger)
    play.plan(like("tools", "a"))
    assert isinstance(ledger.steps.begin(play.run_id, "a", "killed"), Begun)

    ledger.leases.expire(ledger.leases.names())
    play.sweep()

    assert {name: load.measure(valkey).totals[name] for name in ("lost", "recovered")} == {"lost": 1, "recovered": 1}
    ledger.runs.cancel(play.run_id)


def test_a_step_that_was_sent_knows_how_long_it_waited(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(like("tools", "a"))
    sent_at = time.monotonic()
    while time.monotonic() < sent_at + 0.05:
        ledger.runs.status(play.run_id)

    begun = ledger.steps.begin(play.run_id, "a", "worker")

    assert isinstance(begun, Begun)
    assert begun.waited_s is not None
    assert 0.05 <= begun.waited_s < 10
    ledger.runs.cancel(play.run_id)


def test_how_the_last_runs_ended_is_known(ledger: Ledger, valkey: Redis) -> None:
    assert load.recent_outcomes(valkey) == {}
    for number in range(9):
        play = Play(ledger, run_id=f"run{number}")
        play.plan(like("tools", "a"))
        if number < 6:
            ledger.runs.cancel(play.run_id)
        else:
            play.do("a")

    assert load.recent_outcomes(valkey) == {"cancelled": 6, "succeeded": 3}
    assert load.recent_outcomes(valkey, most=4) == {"cancelled": 1, "succeeded": 3}


def test_another_live_worker_of_the_same_name_is_noticed(valkey: Redis) -> None:
    valkey.delete(key_of(None, registry.WORKERS_KEY))
    one = Worker(name="t@h", queues=("tools",), concurrency=1, pid=7, host="h", version="1", started_at=1.0)
    other = one.model_copy(update={"pid": 8, "started_at": 2.0})

    assert registry.announce(valkey, one) == ""
    assert registry.announce(valkey, one) == ""
    assert registry.announce(valkey, other) == "process 7 of h"
    assert registry.announce(valkey, one) == "process 8 of h"

    gone = other.model_copy(update={"seen_at": 1.0})
    for entry in (gone.model_dump_json(), "no worker"):
        valkey.hset(key_of(None, registry.WORKERS_KEY), one.name, entry)
        assert registry.announce(valkey, one) == "", "one that has not spoken for long is none"
    registry.retire(valkey, one.name)


def test_who_works_is_told_by_a_redis_that_takes_no_writes(valkey: Redis) -> None:
    serve(valkey, "one@h", "tools")
    long_gone = Worker(
        name="old@h", queues=("tools",), concurrency=1, pid=1, host="h", version="1", started_at=0.0, seen_at=1.0
    )
    valkey.hset(key_of(None, registry.WORKERS_KEY), long_gone.name, long_gone.model_dump_json())
    valkey.config_set("min-replicas-to-write", 1)
    try:
        assert [worker.name for worker in registry.workers(valkey)] == ["one@h"]
    finally:
        valkey.config_set("min-replicas-to-write", 0)
    registry.workers(valkey)
    assert valkey.hkeys(key_of(None, registry.WORKERS_KEY)) == ["one@h"], "those long gone go once they can"


def test_the_age_of_the_last_sweep_is_known(ledger: Ledger, valkey: Redis) -> None:
    assert load.measure(valkey).sweep_age_s is None

    load.record_sweep(valkey)

    age_s = load.measure(valkey).sweep_age_s
    assert age_s is not None
    assert 0 <= age_s < 10
    assert valkey.ttl(key_of(None, load.SWEPT_KEY)) == -1, "an alert that nobody sweeps goes on until somebody does"


def test_a_sweep_that_had_to_leave_a_shard_out_is_not_whole(ledger: Ledger, valkey: Redis) -> None:
    app = make_app(f"unix://{valkey.connection_pool.connection_kwargs['path']}", "memory://")
    assert sweep_once(app, ledger)

    valkey.set(f"{shard_key(None, 3)}:due", "no sorted set")
    try:
        assert not sweep_once(app, ledger), "so that its age tells that timers of this shard do not fire"
    finally:
        valkey.delete(f"{shard_key(None, 3)}:due")
        app.close()


def test_memory_is_that_of_the_server(valkey: Redis) -> None:
    standing = load.measure(valkey)

    assert standing.memory_bytes > 100_000
    assert standing.memory_limit_bytes == 0


def test_messages_of_all_priorities_are_counted_and_the_oldest_is_seen(ledger: Ledger, valkey: Redis) -> None:
    path = valkey.connection_pool.connection_kwargs["path"]
    app = make_app(f"unix://{path}")
    try:
        for priority in (0, 0, 3, 9):
            celery_app.send(app, [MessageHead(app, "run", priority).signature("work", "tools", ["a"])])
        valkey.hset("no-queue", "field", "value")

        found = queues.waiting(app, ["tools", "agents", "no-queue"])

        assert found["tools"].count == 4
        assert found["tools"].oldest_s is not None
        assert 0 <= found["tools"].oldest_s < 10
        assert found["agents"] == found["no-queue"] == Waiting(0, None)
    finally:
        app.close()
        valkey.delete("no-queue", *(key for key in valkey.keys("tools*")))


def test_of_a_broker_that_does_not_show_its_messages_their_number_is_known(valkey: Redis) -> None:
    path = valkey.connection_pool.connection_kwargs["path"]
    app = make_app(f"unix://{path}", "memory://")
    try:
        celery_app.send(
            app, [MessageHead(app, "run").signature("work", "only-here", ["a"])]
        )  # all of this process share what lies in memory

        assert queues.waiting(app, ["only-here", "never-used"]) == {
            "only-here": Waiting(1, None),
            "never-used": Waiting(0, None),
        }
    finally:
        app.close()


def test_another_worker_with_a_module_is_found_if_it_can_import_it_on_that_queue(valkey: Redis) -> None:
    valkey.delete(key_of(None, registry.WORKERS_KEY))
    good = Worker(
        name="good", queues=("tools",), concurrency=1, pid=7, host="h", version="1", started_at=1.0, code=("shop@1",)
    )
    for worker in (good, good.model_copy(update={"name": "broken", "code_faults": {"shop": "line 1"}})):
        registry.announce(valkey, worker)

    assert registry.worker_with(valkey, "shop", "tools", but="broken") == "good"
    assert registry.worker_with(valkey, "shop", "tools", but="broken", other_than=["shop@2", "store@1"]) == "good"
    assert registry.worker_with(valkey, "shop", "tools", but="broken", other_than=["shop@1"]) == "", (
        "it lacks the same names"
    )
    assert registry.worker_with(valkey, "shop", "tools", but="good") == ""
    assert registry.worker_with(valkey, "shop", "gpu", but="broken") == ""
    assert registry.worker_with(valkey, "store", "tools", but="broken") == ""


@pytest.mark.parametrize("text", ["no JSON", "[]", "[" * 2000, "{}"])
def test_a_worker_that_cannot_be_read_serves_nothing_and_says_so(valkey: Redis, text: str) -> None:
    valkey.delete(key_of(valkey, registry.WORKERS_KEY))
    serve(valkey, "good@h", "tools")
    valkey.hset(key_of(valkey, registry.WORKERS_KEY), "bad@h", text)

    registry.publish_capacity(valkey)

    bad, good = registry.workers(valkey)
    assert (good.name, good.unreadable) == ("good@h", "")
    assert (bad.name, bad.queues) == ("bad@h", ())
    assert bad.unreadable.startswith("it cannot be read (")
    assert f"redis-cli HDEL {key_of(valkey, registry.WORKERS_KEY)} bad@h" in bad.unreadable
    assert registry.published_slots(valkey) == {"tools": 4}


@pytest.mark.parametrize("text", ["no JSON", "[]", "[" * 2000])
def test_leases_and_steps_that_cannot_be_read_are_left_out(ledger: Ledger, valkey: Redis, text: str) -> None:
    play = Play(ledger)
    play.plan(like("tools", "a"), like("tools", "b"), like("gpu", "c"))
    for step in ("a", "b"):
        play.begin(step)
    valkey.hset(f"{play.shard}:run:{play.run_id}:steps", "b", text)
    valkey.zadd(f"{play.shard}:leases", {"garbage": 1e15, "gone|1|dead@h#1|a": 1e15})
    valkey.zadd(f"{play.shard}:ready", {"garbage": 0.0, "wrong|a": 0.0})
    valkey.set(f"{shard_key(valkey, shard_of('wrong'))}:run:wrong:steps", "a text")

    assert load.measure(valkey).leased == {"tools": 1}
    assert load.list_ready_queues(valkey) == {"gpu"}
    valkey.flushdb()
