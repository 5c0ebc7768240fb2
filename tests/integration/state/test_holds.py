"""Decisions of operators in Redis: who decided first counts, a drain is of one process, and what cannot be read holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from cantata.client.fleet import Fleet
from cantata.engine import duties
from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.duties import Sweep
from cantata.engine.engine import Engine
from cantata.engine.fleet import holds, load, registry
from cantata.engine.fleet.holds import Drain
from cantata.engine.fleet.registry import Worker
from cantata.engine.isolation import Isolation
from cantata.engine.publisher import NoPublisher
from cantata.features.audit.audit_store import AuditFilter, AuditStore
from cantata.flows.definitions import Definitions
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Swept
from cantata.ledger.redis.keys import key_of


@pytest.fixture(autouse=True)
def empty(valkey: Redis) -> Iterator[None]:
    valkey.flushdb()
    yield
    valkey.flushdb()


def worker(name: str, *queues: str, **more: object) -> Worker:
    usual = {"name": name, "queues": queues, "concurrency": 2, "pid": 1, "host": "h", "version": "1", "started_at": 5.0}
    return Worker.model_validate({**usual, **more})


def test_a_pause_keeps_who_decided_first_until_it_is_resumed(valkey: Redis) -> None:
    first = holds.pause(valkey, "tools", "ann")

    assert holds.pause(valkey, "tools", "bob") == first
    assert first.by == "ann"
    assert list(holds.paused(valkey)) == ["tools"]
    assert valkey.ttl(key_of(valkey, holds.PAUSED_KEY)) == -1, "it does not expire"
    assert holds.resume(valkey, "tools")
    assert not holds.resume(valkey, "tools")
    assert not holds.paused(valkey)


def test_a_pause_that_cannot_be_read_is_a_pause_and_is_resumed(valkey: Redis) -> None:
    valkey.hset(
        key_of(valkey, holds.PAUSED_KEY),
        mapping={"tools": "{broken", "agents": '{"queue": "agents", "since": 1, "later": 2}'},
    )

    found = holds.read(valkey, "t@h", pid=1, started_at=5.0).paused

    assert list(found) == ["agents", "tools"]
    assert "`submit queues resume tools`" in found["tools"].describe()
    assert (found["agents"].since, found["agents"].unreadable) == (1, "")
    assert holds.resume(valkey, "tools")


def test_keys_of_another_type_hold_nothing_and_stop_nobody(valkey: Redis) -> None:
    for key in (holds.PAUSED_KEY, holds.DRAINS_KEY):
        valkey.set(key_of(valkey, key), "not a hash")

    assert holds.read(valkey, "t@h", pid=1, started_at=5.0) == holds.Holds()
    assert holds.paused(valkey) == {}
    assert load.measure(valkey).paused_queues == {}


def test_a_drain_is_of_one_process_and_goes_with_it(valkey: Redis) -> None:
    asked = Drain(name="t@h", pid=1, started_at=5.0, since=9.0, by="ann")
    holds.drain(valkey, asked)

    assert holds.read(valkey, "t@h", pid=1, started_at=5.0).drain == asked
    assert holds.read(valkey, "other@h", pid=1, started_at=5.0).drain is None
    assert holds.read(valkey, "t@h", pid=1, started_at=6.0).drain is None, (
        "a container that starts again may have the same pid"
    )
    assert not valkey.exists(key_of(valkey, holds.DRAINS_KEY)), "nobody else needs it"
    holds.drain(valkey, asked)
    registry.retire(valkey, "t@h")
    assert not valkey.exists(key_of(valkey, holds.DRAINS_KEY))


def test_no_checks_of_tasks_pile_up_in_a_paused_queue_but_revocations_do(ledger: Ledger) -> None:
    valkey = ledger.redis
    app = make_app(f"redis+socket://{valkey.connection_pool.connection_kwargs['path']}")
    registry.announce(valkey, worker("t@h", "tasks"))
    (check_tasks,) = (do for name, do in duties.LAST if name == "tasks")

    def sweep(tasks: tuple[str, ...] = (), revoked: tuple[str, ...] = ()) -> int:
        check_tasks(Sweep(app, ledger, (0,), 0.0, [Swept(tasks=tasks, revoked=revoked)], Isolation(ledger)))
        return int(valkey.llen("cantata.tasks"))

    assert sweep(tasks=("r|1|a",)) == 1
    holds.pause(valkey, "tasks", "ann")
    assert sweep(tasks=("r|1|a",)) == 1
    assert sweep(revoked=("r|1|a",)) == 2
    holds.resume(valkey, "tasks")
    assert sweep(tasks=("r|1|a",)) == 3


def test_what_an_operator_asked_for_before_stays_as_it_is_and_only_a_change_is_in_the_audit_log(valkey: Redis) -> None:
    ledger = Ledger(valkey)
    fleet = Fleet(Engine(ledger, NoPublisher(), Definitions()))
    registry.announce(valkey, worker("t@h", "tools"))

    fleet.pause_queue("tools", by="ann")
    fleet.pause_queue("tools", by="bob")
    fleet.undrain("t", by="bob")
    fleet.drain("t", by="ann", exits=True)
    fleet.drain("t", by="bob")  # the worker has not announced yet that it is drained
    told = holds.read(valkey, "t@h", pid=1, started_at=5.0).drain
    registry.announce(valkey, worker("t@h", "tools", state="draining"))
    fleet.undrain("t", by="bob")
    fleet.drain("t", by="bob")  # it has not announced yet that it serves

    assert told is not None
    assert (told.by, told.exits) == ("ann", True)
    again = holds.read(valkey, "t@h", pid=1, started_at=5.0).drain
    assert again is not None
    assert (again.by, again.exits) == ("bob", False)
    assert [(each.action, each.by) for each in AuditStore(ledger).iterate(AuditFilter())][::-1] == [
        ("queue.pause", "ann"), ("worker.drain", "ann"), ("worker.undrain", "bob"), ("worker.drain", "bob"),
    ]  # fmt: skip


def test_a_drained_worker_counts_as_no_slots_and_a_paused_queue_as_no_work_to_scale_by(valkey: Redis) -> None:
    registry.announce(valkey, worker("t@h", "tools"))
    registry.announce(valkey, worker("u@h", "tools", "gpu", state="draining"))
    holds.pause(valkey, "tools", "ann")
    registry.publish_capacity(valkey)

    found = load.queues(load.measure(valkey), {"tools": load.Waiting(7, 1.0), "gpu": load.Waiting(2)})

    assert registry.published_slots(valkey) == {"tools": 2}
    assert (found["tools"].ready, found["tools"].work, found["tools"].workers) == (7, 0, 1)
    assert (found["gpu"].work, found["gpu"].workers, found["gpu"].paused) == (2, 0, None)
    assert registry.warnings_for(valkey, ["gpu", "tools"], "1")[1].startswith(
        "no worker serves queue 'gpu', since u@h is drained"
    )
    assert registry.warnings_for(valkey, ["tools"], "1")[0].startswith("queue 'tools' is paused since")
