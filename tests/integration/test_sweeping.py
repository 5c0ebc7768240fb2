"""A sweep with a real broker: what is lost is sent again, what waits its turn is not, and what is due goes first."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest
from redis import Redis

from cantata.engine.dispatch import celery_app, queues
from cantata.engine.dispatch.celery_app import App, make_app
from cantata.engine.fleet import registry
from cantata.engine.limits.limiter import LIMITS_KEY
from cantata.engine.sweeper import SILENT_S, Sweeper
from cantata.flows import canvas
from cantata.flows.canvas import MessageHead
from cantata.flows.events import QueueUnserved
from cantata.flows.graph import Outcome
from cantata.ledger.intervals import SWEEP_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import connect
from cantata.ledger.redis.keys import SHARDS, key_of
from cantata.ledger.runs import event_log
from cantata_workers.process.duties import sweep_once
from tests.integration.state.play import Play, work
from tests.integration.test_threads import url_of

FOREIGN = ("no JSON", "[1]", "7", '{"headers": null}', '{"headers": {"sent_at": "noon"}}', "[" * 100_000, b"\xff")
TOOLS = "cantata.tools"  # in the broker
YEAR_S = 365 * 86_400


@pytest.fixture
def app(valkey: Redis) -> Iterator[App]:
    """An app whose broker is the server of the ledger."""
    app = make_app(f"unix://{valkey.connection_pool.connection_kwargs['path']}")
    yield app
    app.close()


@pytest.fixture
def in_memory(valkey: Redis) -> Iterator[App]:
    """An app whose broker shows a message only to who receives it, as RabbitMQ."""
    app = make_app(f"unix://{valkey.connection_pool.connection_kwargs['path']}", "memory://")
    yield app
    app.close()


def steps_in(valkey: Redis, queue: str) -> list[str]:
    """The steps whose messages wait in a queue, the one to be consumed next first."""
    messages = [json.loads(raw) for raw in cast("list[str]", valkey.lrange(queue, 0, -1))[::-1]]
    return [json.loads(b64decode(message["body"]))[0][1][0] if "body" in message else "foreign" for message in messages]


def look_now(play: Play, *step_ids: str) -> None:
    """Have the next sweep look after steps that nobody began."""
    play.ledger.redis.zadd(f"{play.shard}:ready", {f"{play.run_id}|{step_id}": 1.0 for step_id in step_ids}, xx=True)


def sent_ago(play: Play, seconds: float, *step_ids: str) -> None:
    """As if steps had been sent so long ago."""
    key = f"{play.shard}:run:{play.run_id}:state"
    for step_id in step_ids:
        *words, sent_at = str(play.ledger.redis.hget(key, step_id)).split(" ")
        play.ledger.redis.hset(key, step_id, " ".join([*words, str(int(sent_at) - int(seconds * 1000))]))


def put_at_head(valkey: Redis, queue: str, *, sent_ago_s: float) -> None:
    """Put a message at the head of a queue that was sent so long ago."""
    seconds, micros = valkey.time()
    valkey.rpush(queue, json.dumps({"headers": {"sent_at": seconds + micros / 1e6 - sent_ago_s}}))


@pytest.mark.parametrize("took_s", [0.0, 9.0])
def test_a_wide_fan_that_waits_its_turn_is_not_sent_again(
    ledger: Ledger, valkey: Redis, app: App, took_s: float
) -> None:
    play = Play(ledger)
    since = clock.synchronize(valkey) - took_s
    names = [f"s{number}" for number in range(100)]
    committed = play.plan(*map(work, names))
    sent_ago(play, took_s, *names)
    canvases = canvas.build(MessageHead(app, "run"), [(ready.step_id, ready.spec) for ready in committed.sends])
    celery_app.send(app, canvases, sent_at=since)
    before = steps_in(valkey, TOOLS)

    for _ in range(3):
        look_now(play, *names)
        sweep_once(app, ledger)

    assert steps_in(valkey, TOOLS) == before
    assert sorted(before) == sorted(names)


def test_a_lost_message_is_sent_again_before_what_was_sent_after_it(ledger: Ledger, valkey: Redis, app: App) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"))
    sent_ago(play, 60.0, "a")
    sent_ago(play, 90.0, "b")
    put_at_head(valkey, TOOLS, sent_ago_s=30.0)
    look_now(play, "a", "b", "c")

    sweep_once(app, ledger)

    assert steps_in(valkey, TOOLS) == ["b", "a", "foreign"], (
        "in the order they had; what was sent after the head may still come"
    )
    look_now(play, "a", "b", "c")
    sweep_once(app, ledger)
    assert steps_in(valkey, TOOLS) == ["b", "a", "foreign"], "what goes first tells nothing of those behind it"


def test_lost_messages_take_a_few_round_trips_however_many_they_are(ledger: Ledger, valkey: Redis, app: App) -> None:
    play = Play(ledger)
    names = [f"s{number}" for number in range(150)]
    play.plan(*map(work, names))
    sweep_once(app, ledger)
    idle = reads(valkey, lambda: sweep_once(app, ledger))
    look_now(play, *names)
    valkey.script_flush()  # as after a restart

    taken = reads(valkey, lambda: sweep_once(app, ledger))

    assert sorted(steps_in(valkey, TOOLS)) == sorted(names)
    assert taken - idle < len(names), "what is sent takes some, for its size"


def reads(valkey: Redis, do: Callable[[], object]) -> int:
    """How often the server had something to read meanwhile: once for each round trip, if little is sent."""
    before = valkey.info("stats")["total_reads_processed"]
    do()
    return int(valkey.info("stats")["total_reads_processed"]) - int(before)


@pytest.mark.parametrize("head", FOREIGN)
def test_a_foreign_message_at_the_head_of_a_queue_is_left_alone(
    ledger: Ledger, valkey: Redis, app: App, head: str | bytes
) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    valkey.rpush(TOOLS, head)
    look_now(play, "a")

    assert sweep_once(app, ledger)

    assert valkey.llen(TOOLS) == 1, "behind one that does not tell when it came ours may wait"
    assert queues.waiting(app, ["tools"])["tools"].oldest_s is None
    valkey.delete(TOOLS)
    look_now(play, "a")
    sweep_once(app, ledger)
    assert steps_in(valkey, TOOLS) == ["a"]


def test_what_is_due_is_sent_though_lost_messages_cannot_be_looked_for(
    ledger: Ledger, valkey: Redis, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("dead"), work("again"), work("waits"))
    play.commit(play.begin("again"), outcome=Outcome(status="retry", retry_in_s=60))
    valkey.zadd(f"{play.shard}:leases", {play.begin("dead").lease: 1.0})
    valkey.zadd(f"{play.shard}:due", {"retry|run|again": 1.0})
    look_now(play, "waits")
    monkeypatch.setattr("cantata.engine.duties.heads_sent_at", partial(fail, "no broker"))

    assert not sweep_once(app, ledger), "so that its age tells it"

    assert steps_in(valkey, TOOLS) == ["dead", "again"]


def test_lost_messages_are_sent_though_the_limits_cannot_be_asked(ledger: Ledger, valkey: Redis, app: App) -> None:
    play = Play(ledger)
    play.plan(work("lost"), work("call"))
    play.commit(play.begin("call"), outcome=Outcome(status="wait", retry_in_s=60))
    valkey.zadd(f"{play.shard}:due", {"permit|run|call": 1.0})
    look_now(play, "lost")
    valkey.set(f"{key_of(valkey, LIMITS_KEY)}:tickets", "no hash")

    assert not sweep_once(app, ledger), "so that its age tells it"

    assert steps_in(valkey, TOOLS) == ["lost"]


def fail(text: str, *_: object) -> None:
    raise OSError(text)


def test_a_step_whose_worker_died_goes_before_all_that_waits(ledger: Ledger, valkey: Redis, app: App) -> None:
    play = Play(ledger)
    names = [f"s{number}" for number in range(20)]
    committed = play.plan(work("x"), work("y"), *map(work, names))
    app.send_ready((play.run_id, ready) for ready in committed.sends if ready.step_id in names)
    waiting = steps_in(valkey, TOOLS)
    handed_back, dead = play.begin("x"), play.begin("y")

    ledger.steps.release(handed_back)
    valkey.zadd(f"{play.shard}:leases", {dead.lease: 1.0})
    sweep_once(app, ledger)

    assert steps_in(valkey, TOOLS) == ["y", "x", *waiting]
    look_now(play, *names)
    sweep_once(app, ledger)
    assert len(steps_in(valkey, TOOLS)) == 22, "those behind are not taken for lost"


def test_the_longer_a_step_waits_the_later_it_is_looked_at_again(ledger: Ledger, valkey: Redis, app: App) -> None:
    play = Play(ledger)
    play.plan(work("new"), work("older"), work("oldest"))
    sent_ago(play, 20.0, "older")
    sent_ago(play, 3600.0, "oldest")
    put_at_head(valkey, TOOLS, sent_ago_s=YEAR_S)
    look_now(play, "new", "older", "oldest")

    sweep_once(app, ledger)

    now_ms = valkey.time()[0] * 1000
    looks = [
        cast(float, valkey.zscore(f"{play.shard}:ready", f"run|{step}")) - now_ms for step in ("new", "older", "oldest")
    ]
    assert [round(look / 1000) for look in looks] == pytest.approx([4, 20, 60], abs=3)


def test_a_queue_without_workers_is_told_once_a_run_and_once(ledger: Ledger, valkey: Redis, app: App) -> None:
    play = Play(ledger)
    names = [f"s{number}" for number in range(20)]
    play.plan(*(work(name, queue="nobodys") for name in names))
    now_ms = int(valkey.time()[0]) * 1000
    for sent_ago_s, looked_ago_s in ((9.0, 5.5), (60.0, 50.0)):  # the first sweep is late
        sent_ago(play, sent_ago_s, *names)
        valkey.zadd(f"{play.shard}:ready", {f"run|{name}": now_ms - looked_ago_s * 1000 for name in names})
        sweep_once(app, ledger)

    assert [event.queue for event in event_log.read(valkey, "run") if isinstance(event, QueueUnserved)] == ["nobodys"]


def test_a_broker_that_shows_no_messages_is_asked_for_the_first(ledger: Ledger, in_memory: App) -> None:
    def head() -> float | None:
        return queues.heads_sent_at(in_memory, [("peeked", 0)])["peeked", 0]

    assert head() is None
    before = time.time()
    celery_app.send(in_memory, [MessageHead(in_memory, "run").signature("work", "peeked", ["a"])])

    heads = [head(), head()]

    assert heads[0] == heads[1], "it was put back"
    assert heads[0] == pytest.approx(before, abs=60)
    play = Play(ledger)
    play.plan(work("lost", queue="peeked"))
    sent_ago(play, 120.0, "lost")
    look_now(play, "lost")
    sweep_once(in_memory, ledger)
    assert queues.waiting(in_memory, ["peeked"])["peeked"].count == 2


def lists_of_clients(valkey: Redis) -> int:
    return int(valkey.info("commandstats").get("cmdstat_client|list", {"calls": 0})["calls"])


def test_connections_are_listed_only_for_owners_that_do_not_renew(
    ledger: Ledger, valkey: Redis, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SETTLED_S", 0)
    with connect(url_of(valkey), owner="alive#1~ab") as alive, connect(url_of(valkey), owner="slow#1~ab") as slow:
        alive.ping()
        slow.ping()
        play = Play(ledger)
        play.plan(*(work(name) for name in ("alive", "slow", "dead", "fresh")))
        leases = {name: play.begin(name, owner=f"{name}#1~ab").lease for name in ("alive", "slow", "dead", "fresh")}
        sweeper, before = Sweeper(app, ledger, "sweeper", sweep_once), lists_of_clients(valkey)

        sweeper._sweep_node("", range(SHARDS))
        assert lists_of_clients(valkey) == before
        assert set(ledger.leases.names()) == set(leases.values())

        renewed_ago(play, SILENT_S + 0.1, leases["slow"], leases["dead"])
        sweeper._nodes[""].sweeps_from = 0.0  # as if it had had the lock for long
        sweeper._sweep_node("", range(SHARDS))
        assert lists_of_clients(valkey) == before + 1
        assert set(ledger.leases.names()) == set(leases.values()) - {leases["dead"]}, (
            "slow is connected, and fresh may connect again"
        )


def renewed_ago(play: Play, seconds: float, *leases: str) -> None:
    """As if leases had last been renewed so long ago."""
    for lease in leases:
        play.ledger.redis.zincrby(f"{play.shard}:leases", -1000 * seconds, lease)


def test_the_larger_the_fleet_the_less_often_each_worker_tries_to_sweep(
    ledger: Ledger, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_workers", 1000)
    first, second = Sweeper(app, ledger, "first", sweep_once), Sweeper(app, ledger, "second", sweep_once)

    assert [sweeper._sweep_node("", range(SHARDS)) for sweeper in (first, second)] == [True, False]
    assert (first._pause_s(), second._pause_s()) == (SWEEP_S, 5.0)
