"""One bad item among a hundred, in each duty of a sweep: it costs itself, and the other ninety-nine are served as usual."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis import Redis

from cantata.engine import duties, isolation, sweeper
from cantata.engine.dispatch.celery_app import App, make_app
from cantata.engine.fleet.clock_skip import bring_nearer
from cantata.errors import UnavailableError
from cantata.features.schedules import firing
from cantata.ledger import encoding, step_store
from cantata.ledger.ledger import Ledger
from cantata_workers.process import duties as process_duties
from cantata_workers.process.duties import sweep_once
from tests.integration.features.schedules.test_schedules import HOURLY, Scene, scene
from tests.integration.state.play import Play, work
from tests.integration.test_sweeping import TOOLS, look_now, sent_ago, steps_in
from tests.integration.test_threads import url_of

__all__ = ["scene"]

ERRORS = (
    ValueError("bad"),
    RecursionError("deep"),
    OverflowError("far"),
    MemoryError(),
    type("Panic", (BaseException,), {})("panic"),
)
STEPS = [f"s{number}" for number in range(100)]
BAD = "s41"


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The events that a test logs."""
    events: list[str] = []
    monkeypatch.setattr(isolation, "_logged_at", {})
    monkeypatch.setattr(isolation, "log", SimpleNamespace(error=lambda event, **_: events.append(event), warning=print))
    return events


@pytest.fixture
def app(valkey: Redis) -> Iterator[App]:
    """An app whose broker is the server of the ledger."""
    app = make_app(url_of(valkey))
    yield app
    app.close()


def fails_for(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, is_bad: Callable[..., bool], error: BaseException
) -> None:
    """Have a function raise whenever it is called for the bad item."""
    real = getattr(owner, name)

    def broken(*args: Any, **more: Any) -> Any:
        if is_bad(*args, **more):
            raise error
        return real(*args, **more)

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_step_that_cannot_be_sent_holds_up_no_other(
    ledger: Ledger, valkey: Redis, app: App, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    play = Play(ledger)
    play.plan(*map(work, STEPS))
    sent_ago(play, 60.0, *STEPS)
    fails_for(monkeypatch, App, "send_ready", lambda _, ready, **__: BAD in [step.step_id for _, step in ready], error)
    look_now(play, *STEPS)

    assert sweep_once(app, ledger)

    assert sorted(steps_in(valkey, TOOLS)) == sorted(set(STEPS) - {BAD})


def test_revocations_that_cannot_be_sent_are_left_to_the_next_sweep(
    ledger: Ledger, valkey: Redis, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"run-{number}|1|a" for number in range(40)]
    ledger.steps.keep_revoked(names)
    sent: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("the broker is away")

    with monkeypatch.context() as away:
        away.setattr(App, "send_task", refuse)
        assert not sweep_once(app, ledger)
    monkeypatch.setattr(App, "send_task", lambda _, __, args, **more: sent.extend(args[1]))
    assert sweep_once(app, ledger)

    assert sorted(sent) == sorted(names)


@pytest.mark.parametrize("duty", [name for name, _ in process_duties.DUTIES])
def test_a_duty_that_fails_costs_no_other(ledger: Ledger, app: App, monkeypatch: pytest.MonkeyPatch, duty: str) -> None:
    done: list[str] = []

    def stand_in(name: str) -> Callable[[duties.Sweep], None]:
        def do(_: duties.Sweep) -> None:
            done.append(name)
            if name == duty:
                raise RecursionError("too deep")

        return do

    names = [name for name, _ in process_duties.DUTIES]
    monkeypatch.setattr(process_duties, "DUTIES", [(name, stand_in(name)) for name in names])

    assert not sweep_once(app, ledger), "so that its age tells it"

    assert done == names


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_thread_goes_on_after_whatever_a_sweep_raises(
    ledger: Ledger, app: App, logged: list[str], error: BaseException
) -> None:
    rounds = threading.Semaphore(0)

    def broken(*_: object) -> bool:
        rounds.release()
        raise error

    thread = sweeper.Sweeper(app, ledger, "sweeper", broken, every_s=0.01)
    thread.start()

    swept = [rounds.acquire(timeout=20) for _ in range(3)]
    thread.stop()
    thread.join()

    assert all(swept)
    assert logged == ["sweep_crashed"], "once, and not twice a second"


@pytest.mark.parametrize("error", ERRORS[1:2], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["due_times", "_record"])
def test_a_schedule_that_fails_holds_up_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, logged: list[str], place: str, error: BaseException
) -> None:
    for number in range(20):
        scene.schedules.create(f"n{number}", HOURLY)
    bring_nearer(scene.ledger.redis, 3600)
    is_bad = {"due_times": lambda _, scope, *__: scope == "/n7"}.get(place, lambda _, look, *__: "/n7" in str(look))
    fails_for(monkeypatch, firing, place, is_bad, error)

    for _ in range(3):
        assert sweep_once(scene.client.app, scene.ledger)

    assert [each.fired for each in scene.schedules.list() if each.name != "n7"] == [1] * 19
    assert logged == ["sweep_item_failed"], "once, however often it fails"


def test_a_schedule_that_fails_again_and_again_is_parked_and_can_be_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        scene.schedules.create(name, HOURLY)
    bring_nearer(scene.ledger.redis, 3600)
    with monkeypatch.context() as broken:
        fails_for(broken, firing, "due_times", lambda _, scope, *__: scope == "/bad", RecursionError("deep"))
        for _ in range(3):
            sweep_once(scene.client.app, scene.ledger)
            try_now(scene.ledger.redis, "schedules", "/bad")

        (item,) = scene.ledger.parked.find()
        assert (item.duty, item.item, item.error) == ("schedules", "/bad", "RecursionError: deep")
        assert (
            scene.schedules.get("bad").error
            == "it is not looked at any more, since that failed 3 times: RecursionError: deep"
        )
        assert scene.schedules.get("good").fired == 1

    scene.ledger.parked.act(item.id, "retry", "ann")
    sweep_once(scene.client.app, scene.ledger)

    assert scene.schedules.get("bad").fired == 1
    assert scene.schedules.get("bad").error == ""
    assert scene.ledger.parked.find() == []


@pytest.mark.parametrize("timing", ["1h", "2h"])
def test_a_parked_schedule_that_is_replaced_goes_on(scene: Scene, monkeypatch: pytest.MonkeyPatch, timing: str) -> None:
    park_schedule(scene, monkeypatch)

    scene.schedules.create("bad", {**HOURLY, "every": timing}, replace=True)
    bring_nearer(scene.ledger.redis, 7200)
    sweep_once(scene.client.app, scene.ledger)

    assert scene.schedules.get("bad").fired > 0
    assert scene.ledger.parked.find() == []


def test_a_parked_schedule_that_is_dropped_is_paused_and_may_be_resumed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    park_schedule(scene, monkeypatch)

    scene.ledger.parked.act(scene.ledger.parked.find()[0].id, "drop", "ann")

    assert (scene.schedules.get("bad").state, scene.schedules.get("bad").pause_note[:14]) == (
        "paused",
        "dropped by ann",
    )
    scene.schedules.resume("bad")
    bring_nearer(scene.ledger.redis, 7200)
    sweep_once(scene.client.app, scene.ledger)
    assert scene.schedules.get("bad").fired > 0


def test_a_parked_schedule_that_is_deleted_leaves_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    park_schedule(scene, monkeypatch)

    scene.schedules.delete("bad")

    assert scene.ledger.parked.find() == []


def try_now(redis: Redis, name: str, item: str) -> None:
    """Have the next sweep try an item of a list again."""
    for key in redis.scan_iter(f"*:{name}"):
        if (score := redis.zscore(key, item)) is not None and score != float("inf"):
            redis.zadd(key, {item: 1.0})


def park_schedule(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a schedule that was due fail three times."""
    scene.schedules.create("bad", HOURLY)
    bring_nearer(scene.ledger.redis, 3600)
    with monkeypatch.context() as broken:
        fails_for(broken, firing, "due_times", lambda *_: True, OverflowError("far"))
        for _ in range(3):
            sweep_once(scene.client.app, scene.ledger)
            try_now(scene.ledger.redis, "schedules", "/bad")
    assert len(scene.ledger.parked.find()) == 1


@pytest.mark.parametrize(
    "error", [ValueError("bad"), RecursionError("deep"), MemoryError()], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("way", ["leases", "ready"])
def test_a_step_that_this_process_cannot_read_is_parked_and_the_others_are_sent(
    ledger: Ledger, valkey: Redis, app: App, monkeypatch: pytest.MonkeyPatch, way: str, error: BaseException
) -> None:
    play = Play(ledger)
    play.plan(*(work(step, work="bad" if step == BAD else "tools:x") for step in STEPS))
    sent_ago(play, 60.0, *STEPS)
    if way == "leases":
        for step in STEPS:
            valkey.zadd(f"{play.shard}:leases", {play.begin(step).lease: 1.0})
    else:
        look_now(play, *STEPS)
    with monkeypatch.context() as broken:
        for module in (encoding, step_store):
            fails_for(broken, module, "spec_of", lambda text: '"bad"' in text, error)

        assert sweep_once(app, ledger)

        assert sorted(steps_in(valkey, TOOLS)) == sorted(set(STEPS) - {BAD})
        for _ in range(6):
            for name in ("leases", "ready"):
                for item in cast("list[str]", valkey.zrange(f"{play.shard}:{name}", 0, -1)):
                    if item.endswith(f"|{BAD}"):
                        valkey.zadd(f"{play.shard}:{name}", {item: 1.0})
            valkey.delete(TOOLS)
            sweep_once(app, ledger)
        (parked,) = ledger.parked.find()
        assert (parked.duty, parked.item) == ("lost", f"run|{BAD}")
    ledger.parked.act(parked.id, "retry", "ann")
    for _ in range(2):
        sweep_once(app, ledger)
        try_now(valkey, "ready", f"run|{BAD}")
    assert BAD in steps_in(valkey, TOOLS)
