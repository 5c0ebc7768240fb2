"""What the gateway tells of the fleet, from what was gathered."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cantata.client.fleet import Fleet
from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.fleet.load import FleetLoad, QueueLoad, Waiting, queues
from cantata.engine.fleet.registry import Worker
from cantata.engine.limits.limiter import PausedModel
from cantata.errors import UnavailableError
from cantata.flows.definitions import Agent, Definitions, Tool
from cantata.operation.metrics.families import FAMILIES
from cantata.surfaces.gateway import metrics
from cantata.surfaces.gateway.metrics import FleetMonitor

STANDING = FleetLoad(
    workers=[
        Worker(name="t@h", queues=("tools", "gpu"), concurrency=2, pid=1, host="h", version="1", started_at=0),
        Worker(name="u@h", queues=("tools",), concurrency=4, pid=2, host="h", version="1", started_at=0),
    ],
    leased={"tools": 3, "lost": 1},
    runs_open=5,
    runs_kept=9,
    steps_ready=40,
    totals={"accepted": 9, "closed:failed": 1, "recovered": 2},
    sweep_age_s=0.5,
    memory_bytes=1000,
    memory_limit_bytes=0,
    memory_full_in_s=60.0,
    paused_models=[PausedModel("openai/x", 0.0, 5e9, 60.0, "slow down")],
)


class StubClient:
    """As much of a client as is looked at here."""

    fleet = Fleet(SimpleNamespace(ledger=SimpleNamespace(redis=None), publisher=make_app("redis://127.0.0.1:1")))  # type: ignore[arg-type]  # as much of an engine
    definitions = Definitions(
        tools={"draw": Tool(function="m:draw", queue="studio")}, agents={"ann": Agent(queue="calm")}
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The queues whose messages were counted, time by time."""
    asked: list[Sequence[str]] = []

    def waiting(_app: object, named: Sequence[str]) -> dict[str, Waiting]:
        asked.append(named)
        return {queue: Waiting(7, 1.5) if queue == "tools" else Waiting(0) for queue in named}

    monkeypatch.setattr("cantata.engine.fleet.load.measure", lambda _: STANDING)
    monkeypatch.setattr("cantata.engine.fleet.load.list_ready_queues", lambda _: {"nobodys"})
    monkeypatch.setattr("cantata.engine.dispatch.queues.waiting", waiting)
    monkeypatch.setattr("cantata.client.fleet.Sizes.estimate", lambda *_: 500.0)
    return asked


@pytest.fixture
def monitor(asked: list[Sequence[str]]) -> FleetMonitor:
    return FleetMonitor(StubClient())  # type: ignore[arg-type]  # as said there


def exported(monitor: FleetMonitor) -> dict[str, tuple[str, set[str]]]:
    """PathName → type and labels, of ours."""
    text = monitor.page("", "").body.decode()
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("cantata_"):
            found[name] = (family.type, {label for sample in family.samples for label in sample.labels})
    return found


def test_all_that_the_gateway_is_said_to_show_it_shows_and_nothing_else(monitor: FleetMonitor) -> None:
    said = {
        family.name: (family.kind, set(family.labels)) for family in FAMILIES if family.source in ("gateway", "both")
    }

    assert exported(monitor) == said


def test_the_load_of_a_queue_is_what_waits_and_what_is_leased(monitor: FleetMonitor) -> None:
    found = monitor.load().queues

    assert found["tools"] == QueueLoad(ready=7, leased=3, work=10, slots=6, workers=2, oldest_wait_s=1.5)
    assert found["gpu"] == QueueLoad(ready=0, leased=0, work=0, slots=2, workers=1, oldest_wait_s=None)
    assert found["lost"].leased == 1, "its worker is gone, its lease is not"


def test_queues_are_told_of_that_nobody_serves_if_they_are_configured_or_asked_for(monitor: FleetMonitor) -> None:
    assert {"coordinator", "agents", "tools", "studio", "calm"} <= monitor.load().queues.keys()
    assert "night" not in monitor.load().queues

    assert monitor.load(["night"]).queues["night"].work == 0
    assert "night" in monitor.load().queues, "and from then on"


def test_a_queue_is_told_of_that_only_steps_name(monitor: FleetMonitor) -> None:
    assert monitor.load().queues["nobodys"].workers == 0


def test_a_name_that_is_none_is_not_looked_for_on_the_metrics_port(
    monitor: FleetMonitor, asked: list[Sequence[str]]
) -> None:
    assert monitor.load_page("queue=cantata%3Aworkers&queue=gpu&queue=", "").status == 200

    assert "gpu" in asked[-1]
    assert "cantata:workers" not in asked[-1]


def test_what_was_gathered_is_told_again_for_a_second(
    monitor: FleetMonitor, asked: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        monitor.load()
        monitor.page("", "")
    assert len(asked) == 1

    monkeypatch.setattr(metrics, "FRESH_S", 0.0)
    monitor.load()
    assert len(asked) == 2


def test_the_number_of_queues_that_can_be_asked_for_is_bounded(
    monitor: FleetMonitor, asked: list[Sequence[str]]
) -> None:
    for number in range(3):
        monitor.load([f"q{number}-{each}" for each in range(90)])

    assert len(asked[-1]) <= metrics.MAX_QUEUES + 10
    asked.clear()
    monitor.load(["one-more"])
    assert asked == [], "it is not looked for, however often it is asked for"


def test_a_queue_that_nobody_asked_for_in_a_while_is_forgotten(
    monitor: FleetMonitor, asked: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("cantata.surfaces.gateway.metrics.time.monotonic", lambda: now[0])
    monitor.load(["night", *(f"q{number}" for number in range(metrics.MAX_QUEUES - 1))])
    now[0] += metrics.REMEMBERED_S * 0.6
    monitor.load(["night", "late"])
    assert "night" in asked[-1]
    assert "late" not in asked[-1], "there is no room"

    now[0] += metrics.REMEMBERED_S * 0.6
    monitor.load(["late"])

    assert {"night", "late", "studio", "coordinator"} <= set(asked[-1])
    assert "q7" not in asked[-1]


def test_without_redis_the_page_says_so_and_the_load_is_unavailable(
    monitor: FleetMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> FleetLoad:
        raise UnavailableError("Redis is away")

    monkeypatch.setattr("cantata.engine.fleet.load.measure", away)

    assert exported(monitor).keys() == {"cantata_redis_up", "cantata_build_info"}
    assert "cantata_redis_up 0.0" in monitor.page("", "").body.decode()
    assert monitor.load_page("", "").status == 503


def test_who_asks_while_redis_hangs_is_told_so_in_time_and_another_try_is_made(
    monitor: FleetMonitor, asked: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    free, tries = threading.Event(), list[float]()

    def hangs(_: object) -> FleetLoad:
        tries.append(time.monotonic())
        if len(tries) == 1:
            assert free.wait(20)
        return STANDING

    monkeypatch.setattr("cantata.engine.fleet.load.measure", hangs)
    monkeypatch.setattr(metrics, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(metrics, "FRESH_S", 0.0)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="gave no answer"):
            monitor.measure()
    assert "cantata_redis_up 0.0" in monitor.page("", "").body.decode()
    assert len(tries) == 1, "whoever asks meanwhile begins nothing"

    monkeypatch.setattr(metrics, "TIMEOUT_S", 20.0)
    monkeypatch.setattr(metrics, "HUNG_S", 0.0)
    assert monitor.measure()[0] == STANDING, "though the first still hangs"
    free.set()


def test_queues_of_nobody_and_nothing_are_none() -> None:
    empty = FleetLoad([], {}, 0, 0, 0, {}, None, 0, 0)

    assert queues(empty, {}) == {}
