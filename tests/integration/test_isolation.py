"""One bad item among a hundred, in each duty of a sweep: it costs itself, and the other ninety-nine are served as usual."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from cantata.coordinator import duties, firing, isolation, sweeper
from cantata.coordinator.duties import sweep_once
from cantata.dispatch.celery_app import App, make_app
from cantata.state.fleet.clock_skip import bring_nearer
from cantata.state.ledger.ledger import Ledger
from tests.integration.state.play import Play, work
from tests.integration.test_schedules import HOURLY, Scene, scene
from tests.integration.test_sweeping import TOOLS, look_now, sent_ago, steps_in
from tests.integration.test_threads import url_of

__all__ = ["scene"]

ERRORS = (ValueError("bad"), RecursionError("deep"), OverflowError("far"), MemoryError(), type("Panic", (BaseException,), {})("panic"))
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


def fails_for(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, is_bad: Callable[..., bool], error: BaseException) -> None:
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
    fails_for(monkeypatch, duties, "send_ready", lambda _, ready, **__: BAD in [step.step_id for _, step in ready], error)
    look_now(play, *STEPS)

    assert sweep_once(app, ledger)

    assert sorted(steps_in(valkey, TOOLS)) == sorted(set(STEPS) - {BAD})


@pytest.mark.parametrize("duty", [name for name, _ in duties.DUTIES])
def test_a_duty_that_fails_costs_no_other(ledger: Ledger, app: App, monkeypatch: pytest.MonkeyPatch, duty: str) -> None:
    done: list[str] = []

    def stand_in(name: str) -> Callable[[duties.Sweep], None]:
        def do(_: duties.Sweep) -> None:
            done.append(name)
            if name == duty:
                raise RecursionError("too deep")

        return do

    names = [name for name, _ in duties.DUTIES]
    monkeypatch.setattr(duties, "DUTIES", [(name, stand_in(name)) for name in names])

    assert not sweep_once(app, ledger), "so that its age tells it"

    assert done == names


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_thread_goes_on_after_whatever_a_sweep_raises(
    ledger: Ledger, app: App, monkeypatch: pytest.MonkeyPatch, logged: list[str], error: BaseException
) -> None:
    rounds = threading.Semaphore(0)

    def broken(*_: object) -> bool:
        rounds.release()
        raise error

    monkeypatch.setattr(sweeper, "sweep_once", broken)
    thread = sweeper.Sweeper(app, ledger, "sweeper", every_s=0.01)
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
