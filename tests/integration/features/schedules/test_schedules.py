"""Schedules in a real ledger: each time has one run whatever dies, as the overlap, the window and the clock allow."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from redis.exceptions import RedisError

from cantata.client.client import Client
from cantata.engine.fleet import load
from cantata.engine.fleet.clock_skip import bring_nearer
from cantata.errors import ConfigError
from cantata.features.schedules.firing import fire_due
from cantata.features.schedules.schedule_store import ScheduleRecord, ScheduleStore
from cantata.features.schedules.schedules import describe
from cantata.flows.definitions import (
    Agent,
    Alert,
    Chain,
    Defaults,
    Definitions,
    Limits,
    Quota,
    SessionSettings,
    Tool,
    Webhook,
)
from cantata.flows.schedules import Schedule, ScheduledRun
from cantata.flows.wire import ChainNode
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.ledger.redis.keys import definitions_key, run_key, shard_key, shard_of
from cantata.operation import fault_points, metrics
from cantata.operation.embedded.valkey import find_server
from cantata_workers.process.duties import sweep_once
from tests.integration.test_threads import url_of
from tests.waiting import until

HOUR_S = 3600.0
QUEUE = "cantata.coordinator"
DEFINITIONS = Definitions(
    agents={"writer": Agent(description="Writes.")},
    defaults=Defaults(timeout_s=20 * 86_400, retention_s=20 * 86_400),
    tools={"count": Tool(function="json:dumps")},
    chains={
        "tally": Chain(
            nodes=[ChainNode(node_id="a", kind="tool", name="count", input_map={"obj": "input.day"})], entry_node="a"
        )
    },
)
TURN: dict[str, Any] = {"turn": {"text": "report of {date}", "agent": "writer"}}
HOURLY: dict[str, Any] = {"every": "1h", **TURN}
IN_NEWS: dict[str, Any] = {"every": "1h", "turn": {**TURN["turn"], "session": "news"}}


class Scene:
    """A client, and a sweeper that sweeps when the test says so."""

    def __init__(self, ledger: Ledger, definitions: Definitions = DEFINITIONS) -> None:
        self.ledger = ledger
        self.client = Client(url_of(ledger.redis), config=definitions)
        self.schedules = self.client.schedules

    def with_definitions(self, definitions: Definitions) -> Scene:
        """The scene with another configuration."""
        return Scene(self.ledger, definitions)

    def pass_time(self, seconds: float = HOUR_S, *, with_outage: bool = False) -> None:
        """Let time pass, with or without a fleet that would have fired in time, and sweep."""
        bring_nearer(self.ledger.redis, seconds)
        if with_outage:
            for key in self.ledger.redis.scan_iter("*:schedule:*", _type="hash"):
                self.ledger.redis.hdel(key, "grace_ms")
        self.sweep()

    def sweep(self) -> None:
        """Sweep all shards."""
        sweep_once(self.client.app, self.ledger)

    def due(self) -> Any:
        """The schedules that a sweep finds due."""
        return [each for swept in self.ledger.leases.sweep_all() for each in swept.schedules]

    def runs(self) -> list[str]:
        """The runs of all schedules, the oldest first."""
        return [record.run_id for record in reversed(self.client.runs(most=1000))]

    def sent(self) -> list[str]:
        """The runs whose first messages were sent, the oldest first, by priority."""
        queues = sorted(self.ledger.redis.scan_iter(f"{QUEUE}*", _type="list"))
        messages = [raw for queue in queues for raw in cast("list[str]", self.ledger.redis.lrange(queue, 0, -1))[::-1]]
        return [json.loads(b64decode(json.loads(raw)["body"]))[0][0] for raw in messages]

    def end(self, run_id: str) -> None:
        """End a run."""
        self.ledger.runs.cancel(run_id)


@pytest.fixture
def scene(ledger: Ledger) -> Iterator[Scene]:
    """A scene with an empty ledger."""
    scene = Scene(ledger)
    yield scene
    scene.client.close()


def counts(record: ScheduleRecord) -> tuple[int, int, int, int]:
    """The times that were fired, skipped and missed, and that wait."""
    return record.fired, record.skipped, record.missed, record.pending


def day_of(run: ScheduledRun) -> str:
    """The date for which a run was started."""
    return datetime.fromtimestamp(run.scheduled_at, UTC).strftime("%Y-%m-%d")


# --- firing -----------------------------------------------------------------------------------------------------------------


def test_a_time_that_comes_starts_one_run_with_its_request_and_labels(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "labels": {"of": "books"}})
    assert scene.due() == []
    planned = scene.schedules.get("hourly").next_ms or 0

    scene.pass_time()
    scene.sweep()

    record = scene.schedules.get("hourly")
    (run,) = record.runs
    at = datetime.fromtimestamp(planned / 1000, UTC)
    kind, request, digest, labels = scene.ledger.runs.request_of(run.run_id)
    assert (kind, json.loads(request)) == ("turn", {"text": f"report of {at:%Y-%m-%d}", "agent": "writer"})
    assert labels == {"of": "books", "schedule": "hourly", "scheduled_at": at.isoformat(timespec="seconds")}
    assert (run.scheduled_at * 1000, run.status, digest) == (planned, "accepted", record.digest)
    assert record.next_ms == planned + HOUR_S * 1000
    assert counts(record) == (1, 0, 0, 0)
    assert scene.sent() == [run.run_id], "its first message is sent at once"
    assert shard_of(run.run_id) == shard_of(record.scope)


def test_chains_and_inline_requests_get_the_time_in_their_input(scene: Scene) -> None:
    scene.schedules.create("named", {"every": "1h", "chain": "tally", "input": {"day": "{date}"}})
    inline = {"nodes": [{"node_id": "n", "kind": "tool", "name": "count"}], "entry_node": "n", "timeout": 7}
    scene.schedules.create("inline", {"every": "1h", "chain": inline})

    scene.pass_time()

    requests = {}
    for name in ("named", "inline"):
        run_id = scene.schedules.get(name).runs[0].run_id
        requests[name] = json.loads(scene.ledger.runs.request_of(run_id)[1])
        assert scene.client.run(run_id).kind == "chain"
    assert requests["named"]["initial_input"] == {"day": day_of(scene.schedules.get("named").runs[0])}
    assert requests["inline"]["timeout"] == 7


def test_one_date_is_run_once_and_then_the_schedule_is_over(scene: Scene) -> None:
    scene.schedules.create("once", {"at": (datetime.now(UTC) + timedelta(hours=5)).isoformat(), **TURN})

    scene.pass_time(5 * HOUR_S + 1)
    scene.pass_time(100 * HOUR_S)

    record = scene.schedules.get("once")
    assert (counts(record), record.next_ms) == ((1, 0, 0, 0), None)
    with pytest.raises(ConfigError, match="its time has passed"):
        scene.schedules.create("late", {"at": "2020-01-01T00:00", **TURN})


def test_jitter_delays_a_time_and_does_not_change_it(scene: Scene) -> None:
    scene.schedules.create("spread", {**HOURLY, "jitter": "30m"})
    record = scene.schedules.get("spread")
    look_at = scene.ledger.redis.zscore(f"{shard_key(None, shard_of(record.scope))}:schedules", record.scope) or 0
    assert 0 < look_at - (record.next_ms or 0) < 30 * 60_000

    scene.pass_time(1.5 * HOUR_S)

    assert scene.schedules.get("spread").runs[0].scheduled_at * 1000 == record.next_ms


def test_two_sweepers_that_found_the_same_time_start_one_run(scene: Scene) -> None:
    names = [f"s{number}" for number in range(8)]
    for name in names:
        scene.schedules.create(name, HOURLY)
    bring_nearer(scene.ledger.redis, HOUR_S)
    due = scene.due()
    assert len(due) == 8

    threads = [threading.Thread(target=fire_due, args=(scene.client.app, scene.ledger, due)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(scene.runs()) == 8
    assert sorted(scene.sent()) == sorted(scene.runs())
    assert {counts(each) for each in scene.schedules.list()} == {(1, 0, 0, 0)}


class Died(BaseException):
    """The process died here."""


def sweep_and_die(scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Sweep, in a process that dies at a fault point."""

    def die(label: str) -> bool:
        if label == point:
            raise Died
        return False

    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "at", die)
        with pytest.raises(Died):
            scene.sweep()


@pytest.mark.parametrize("fields", [HOURLY, IN_NEWS], ids=["alone", "session"])
@pytest.mark.parametrize("point", ["swept", "schedule-fired", "canvas-sent"])
def test_a_sweeper_that_dies_anywhere_around_a_firing_leaves_one_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str, fields: dict[str, Any]
) -> None:
    scene.schedules.create("hourly", fields)
    bring_nearer(scene.ledger.redis, HOUR_S)

    sweep_and_die(scene, monkeypatch, point)
    for _ in range(3):
        scene.sweep()
    (run_id,) = scene.runs()
    scene.ledger.redis.zadd(f"{shard_key(None, shard_of(run_id))}:ready", {f"{run_id}|@start": 1.0}, xx=True)
    scene.sweep()

    assert scene.runs() == [run_id]
    assert scene.sent() == [run_id], "a lost message is found by the sweep"
    assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 0)


def test_a_firing_that_is_repeated_since_its_reply_was_lost_starts_no_second_run(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    bring_nearer(scene.ledger.redis, HOUR_S)
    due = scene.due()

    fire_due(scene.client.app, scene.ledger, due)
    fire_due(scene.client.app, scene.ledger, due)

    assert len(scene.runs()) == 1
    assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 0)


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_redis_that_is_restarted_over_a_firing_has_one_run(tmp_path: Path, kill: signal.Signals) -> None:
    words = [
        "--port",
        "0",
        "--unixsocket",
        f"{tmp_path}/s",
        "--dir",
        str(tmp_path),
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ]

    def start() -> subprocess.Popen[bytes]:
        Path(tmp_path, "s").unlink(missing_ok=True)
        server = subprocess.Popen([find_server(), *words, "--save", ""], stdout=subprocess.DEVNULL)
        client = connect(f"unix://{tmp_path}/s")

        def answers() -> bool:
            with suppress(RedisError):
                return bool(client.ping())
            return False

        until(answers, "a server that answers")
        client.close()
        return server

    server = start()
    redis = connect(f"unix://{tmp_path}/s")
    scene = Scene(Ledger(redis))
    try:
        scene.schedules.create("hourly", HOURLY)
        bring_nearer(redis, HOUR_S)
        due = scene.due()
        for _ in range(2):
            server.send_signal(kill)
            server.wait()
            server = start()
            fire_due(scene.client.app, scene.ledger, due)

        assert len(scene.runs()) == 1
        assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 0)
        assert scene.due() == []
    finally:
        scene.client.close()
        redis.close()
        server.kill()
        server.wait()


# --- sessions ---------------------------------------------------------------------------------------------------------------


def test_a_run_in_a_session_takes_its_place_among_the_session_s_turns(scene: Scene) -> None:
    record = scene.schedules.create("hourly", IN_NEWS)
    users = scene.client.submit_turn("hello", agent="writer", session="news").run_id

    scene.pass_time()
    scene.sweep()

    (run,) = scene.schedules.get("hourly").runs
    after = scene.client.submit_turn("more", agent="writer", session="news").run_id
    assert scene.client.sessions.waiting("news") == [users, run.run_id, after]
    assert {shard_of(each) for each in (users, run.run_id, after)} == {record.shard} != {shard_of(record.scope)}
    assert scene.sent() == [users], "it waits for its turn"
    assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 0)
    scene.end(users)
    ready = scene.ledger.redis.zrange(f"{shard_key(None, record.shard)}:ready", 0, -1)
    assert ready == [f"{run.run_id}|@start"], "its turn has come, so the sweep sends it if nobody does"
    scene.end(run.run_id)
    assert [each.content for each in scene.client.sessions.history("news") if each.role == "user"] == [
        "hello",
        f"report of {day_of(run)}",
    ]


@pytest.mark.parametrize("point", ["swept", "schedule-fired"])
def test_a_sweeper_that_dies_around_a_firing_leaves_one_run_in_a_session_s_queue(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    scene.schedules.create("hourly", IN_NEWS)
    users = scene.client.submit_turn("hello", agent="writer", session="news").run_id
    bring_nearer(scene.ledger.redis, HOUR_S)
    due = scene.due()

    sweep_and_die(scene, monkeypatch, point)
    for _ in range(2):
        scene.sweep()
        fire_due(scene.client.app, scene.ledger, due)

    (run,) = scene.schedules.get("hourly").runs
    assert scene.client.sessions.waiting("news") == [users, run.run_id]
    assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 0)


def test_a_session_whose_queue_is_full_counts_as_an_open_run(ledger: Ledger) -> None:
    scene = Scene(ledger, DEFINITIONS.model_copy(update={"sessions": SessionSettings(max_waiting=1)}))
    for overlap in ("allow", "queue", "cancel_previous"):
        scene.schedules.create(overlap, {**IN_NEWS, "overlap": overlap})
    users = [scene.client.submit_turn("hello", agent="writer", session="news").run_id for _ in range(2)]

    scene.pass_time()

    assert {each.name: counts(each) for each in scene.schedules.list()} == {
        "allow": (0, 1, 0, 0),
        "queue": (0, 0, 0, 1),
        "cancel_previous": (0, 1, 0, 0),
    }
    assert scene.due() == [], "nor is it looked at again at once"
    assert scene.schedules.trigger("allow").outcome == "skipped"
    scene.pass_time(10)
    assert counts(scene.schedules.get("queue")) == (0, 0, 0, 1)
    for user in users:
        scene.end(user)
    scene.pass_time(10)
    assert counts(scene.schedules.get("queue")) == (1, 0, 0, 0)
    scene.client.close()


@pytest.mark.parametrize("times", [{"every": "24h"}, {"at": "2000-01-01"}], ids=["later", "over"])
def test_a_trigger_that_waits_for_a_full_session_is_tried_again(ledger: Ledger, times: dict[str, Any]) -> None:
    scene = Scene(ledger, DEFINITIONS.model_copy(update={"sessions": SessionSettings(max_waiting=1)}))
    declared = Schedule.model_validate({**IN_NEWS, "every": None, **times, "overlap": "queue"})
    with_schedule = scene.with_definitions(
        scene.client.definitions.model_copy(update={"schedules": {"report": declared}})
    )
    with_schedule.schedules.apply()
    users = [scene.client.submit_turn("hello", agent="writer", session="news").run_id for _ in range(2)]

    assert scene.schedules.trigger("report").outcome == "queued"
    scene.pass_time(10)
    assert counts(scene.schedules.get("report"))[3] == 1
    for user in users:
        scene.end(user)
    scene.pass_time(10)

    assert (scene.schedules.get("report").pending, len(scene.client.sessions.waiting("news"))) == (0, 1)
    for each in (scene, with_schedule):
        each.client.close()


def test_cancel_previous_cancels_the_schedule_s_own_run_in_a_session(scene: Scene) -> None:
    scene.schedules.create("hourly", {**IN_NEWS, "overlap": "cancel_previous"})
    users = scene.client.submit_turn("hello", agent="writer", session="news").run_id
    for _ in range(2):
        scene.pass_time()

    newest, first = scene.schedules.get("hourly").runs
    assert (newest.status, first.status) == ("accepted", "cancelled")
    assert scene.client.sessions.waiting("news") == [users, newest.run_id]


def test_a_schedule_in_a_session_is_found_changed_and_deleted_by_its_name(scene: Scene) -> None:
    scene.schedules.of("acme").create("hourly", IN_NEWS)
    schedules = scene.schedules.of("acme")
    with pytest.raises(ConfigError, match="there is a schedule 'hourly' already"):
        schedules.create("hourly", HOURLY)
    assert schedules.pause("hourly").state == "paused"
    assert schedules.resume("hourly").state == "active"
    run_id = schedules.trigger("hourly").run_id
    assert scene.client.sessions.of("acme").waiting("news") == [run_id]
    assert schedules.get("hourly").target.startswith("turn for agent writer in session news: ")
    assert schedules.backfill("hourly", datetime.fromisoformat("2026-01-01"), datetime.fromisoformat("2026-01-01")) == 1
    scene.end(run_id)
    scene.sweep()
    assert len(scene.client.sessions.of("acme").waiting("news")) == 1

    schedules.delete("hourly")

    assert list(scene.ledger.redis.scan_iter("*schedule*")) == []
    assert (schedules.find("hourly"), schedules.list()) == (None, [])


@pytest.mark.parametrize(
    "fields", [HOURLY, {"every": "1h", "turn": {**TURN["turn"], "session": "other"}}], ids=["none", "other"]
)
def test_a_schedule_that_gets_another_session_is_never_there_twice(scene: Scene, fields: dict[str, Any]) -> None:
    before = scene.schedules.create("hourly", IN_NEWS)
    scene.pass_time()

    after = scene.schedules.create("hourly", fields, replace=True)
    scene.pass_time()

    assert after.shard != before.shard
    assert [counts(each) for each in scene.schedules.list()] == [(1, 0, 0, 0)], "its counts begin again"
    assert len(scene.runs()) == 2
    scene.schedules.create("hourly", IN_NEWS, replace=True)
    assert [each.shard for each in scene.schedules.list()] == [before.shard]


def test_a_paused_schedule_that_gets_another_session_stays_paused(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    scene.schedules.pause("hourly", "holiday")

    moved = scene.schedules.create("hourly", IN_NEWS, replace=True)
    scene.pass_time()

    assert (moved.state, moved.pause_note, scene.runs()) == ("paused", "holiday", [])
    scene.schedules.resume("hourly")
    scene.pass_time()
    assert len(scene.runs()) == 1


def test_two_calls_that_create_a_schedule_in_two_sessions_leave_no_two(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    find = ScheduleStore._shards_with

    def find_late(store: ScheduleStore, scope: str) -> list[int]:
        found = find(store, scope)
        if not looked:
            looked.append(scope)
            Scene(scene.ledger).schedules.create("hourly", HOURLY)
        return found

    monkeypatch.setattr(ScheduleStore, "_shards_with", find_late)
    with pytest.raises(ConfigError, match="another call changed its session at the same time; try again"):
        scene.schedules.create("hourly", IN_NEWS)

    assert [each.spec.turn for each in scene.schedules.list()] == [Schedule.model_validate(HOURLY).turn]


# --- outages, and clocks that jump ------------------------------------------------------------------------------------------


def test_times_of_an_outage_are_run_in_order_within_the_window_and_counted_behind_it(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "allow", "catch_up": "2h30m"})
    first_ms = scene.schedules.get("hourly").next_ms or 0
    bring_nearer(scene.ledger.redis, (first_ms - scene.schedules.get("hourly").now_ms) / 1000 + 0.05)

    scene.pass_time(10 * HOUR_S, with_outage=True)

    record = scene.schedules.get("hourly")
    assert counts(record) == (3, 0, 8, 0), "11 times have come"
    assert [run.scheduled_at * 1000 for run in reversed(record.runs)] == [first_ms + n * 3_600_000 for n in (8, 9, 10)]
    assert record.next_ms == first_ms + 11 * 3_600_000


def test_a_long_outage_is_worked_off_by_many_sweeps(scene: Scene) -> None:
    scene.schedules.create("often", {"every": "1s", "catch_up": "1m", "overlap": "allow", **TURN})

    scene.pass_time(HOUR_S, with_outage=True)
    for _ in range(6):
        scene.sweep()

    record = scene.schedules.get("often")
    assert 3530 <= record.missed <= 3545
    assert 55 <= record.fired <= 65
    assert len(scene.due()) <= 1


def test_a_clock_that_is_set_back_repeats_no_time(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "allow", "catch_up": "1d"})
    scene.pass_time(2 * HOUR_S)
    record = scene.schedules.get("hourly")
    assert record.fired in (2, 3)
    key = f"{shard_key(None, shard_of(record.scope))}:schedule:{record.scope}"
    scene.ledger.redis.hincrby(key, "skipped_ms", -90 * 60_000)  # for the schedule, as if the clock were set back

    scene.sweep()
    assert scene.schedules.get("hourly").fired == record.fired
    scene.ledger.redis.zadd(
        f"{shard_key(None, shard_of(record.scope))}:schedules", {record.scope: 1.0}
    )  # even if it is looked at
    scene.sweep()

    after = scene.schedules.get("hourly")
    assert (after.fired, after.missed, after.next_ms) == (record.fired, 0, record.next_ms)


def test_a_skip_of_time_in_a_test_makes_no_schedule_late(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "allow", "catch_up": "10s"})

    scene.pass_time(100 * HOUR_S)
    for _ in range(2):
        scene.sweep()

    assert counts(scene.schedules.get("hourly")) == (100, 0, 0, 0)
    scene.pass_time(10 * HOUR_S, with_outage=True)
    assert scene.schedules.get("hourly").missed in (9, 10), "but an outage does"


def test_times_without_a_run_are_posted_to_the_webhook_of_their_alert_once(ledger: Ledger) -> None:
    alerts = {
        "mine": Alert(on="schedule_missed", webhook="ops", name="hourly"), "other": Alert(on="schedule_missed", webhook="ops", name="daily")
    }  # fmt: skip
    ops = Webhook(url="https://hooks.example.com/ops")
    scene = Scene(ledger, DEFINITIONS.model_copy(update={"webhooks": {"ops": ops}, "alerts": alerts}))
    scene.schedules.create("hourly", {**HOURLY, "overlap": "allow", "catch_up": "2h", "webhooks": ["end=ops"]})

    scene.pass_time(10 * HOUR_S, with_outage=True)
    scene.sweep()

    requests = [scene.ledger.runs.request_of(run_id)[:2] for run_id in scene.runs()]
    posts = [json.loads(text) for kind, text in requests if kind == "webhook"]
    assert [(each["alert"], each["to"], each["data"]["schedule"]) for each in posts] == [("mine", "ops", "hourly")]
    assert "times are missed" in posts[0]["text"]
    run = scene.schedules.get("hourly").runs[0].run_id
    assert ledger.redis.hget(run_key(ledger.redis, run), "webhooks") == '[{"to":"ops","on":{"end":true}}]'
    scene.client.close()


def test_a_schedule_that_nobody_fires_counts_as_overdue(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    assert load.measure(scene.ledger.redis).schedules_overdue == 0

    bring_nearer(scene.ledger.redis, 2 * HOUR_S)

    assert load.measure(scene.ledger.redis).schedules_overdue == 1
    scene.sweep()
    assert load.measure(scene.ledger.redis).schedules_overdue == 0


# --- overlap ----------------------------------------------------------------------------------------------------------------


def test_skip_passes_over_times_while_a_run_is_open(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    for _ in range(3):
        scene.pass_time()
    (first,) = scene.runs()
    scene.end(first)
    scene.pass_time()

    assert counts(scene.schedules.get("hourly")) == (2, 2, 0, 0)


def test_queue_runs_times_one_after_the_other_when_the_one_before_has_ended(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "queue"})
    for _ in range(3):
        scene.pass_time()
    assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 2)

    for number in range(1, 4):
        scene.sweep()
        assert len(scene.runs()) == number
        scene.end(scene.schedules.get("hourly").runs[0].run_id)
    scene.sweep()

    record = scene.schedules.get("hourly")
    assert counts(record) == (3, 0, 0, 0)
    assert [b.scheduled_at - a.scheduled_at for a, b in zip(record.runs[1:], record.runs, strict=False)] == [3600] * 2


def test_cancel_previous_cancels_the_open_run_and_starts_the_newest_time_only(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "cancel_previous", "catch_up": "1d"})
    scene.pass_time()
    (first,) = scene.runs()

    scene.pass_time(3 * HOUR_S)

    record = scene.schedules.get("hourly")
    assert counts(record) == (2, 2, 0, 0)
    assert [run.status for run in record.runs] == ["accepted", "cancelled"]
    error = scene.client.run(first).record().error
    assert error is not None
    assert "the next run of schedule 'hourly' was due" in error.message


def test_allow_runs_all_beside_each_other(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "allow"})
    for _ in range(3):
        scene.pass_time()

    assert counts(scene.schedules.get("hourly")) == (3, 0, 0, 0)


def test_a_quota_that_is_used_up_delays_a_time_within_its_window(ledger: Ledger) -> None:
    limits = Limits(quotas={"acme": Quota(open_runs=1)})
    scene = Scene(ledger, DEFINITIONS.model_copy(update={"limits": limits}))
    schedules = scene.schedules.of("acme")
    schedules.create("hourly", {**HOURLY, "overlap": "allow", "catch_up": "2h"})
    scene.pass_time()
    (first,) = scene.runs()
    scene.pass_time()
    record = schedules.get("hourly")
    assert counts(record) == (1, 0, 0, 0)
    assert "limits.quotas open_runs" in record.error
    with pytest.raises(ConfigError, match="used up its quota"):
        schedules.trigger("hourly")

    scene.end(first)
    scene.pass_time(5)

    record = schedules.get("hourly")
    assert (counts(record), record.error) == ((2, 0, 0, 0), "")
    scene.client.close()


@pytest.mark.parametrize("comes", ["at its time", "as a backfill"])
def test_no_more_runs_start_at_once_than_a_quota_allows(ledger: Ledger, comes: str) -> None:
    limits = Limits(quotas={"acme": Quota(open_runs=2)})
    scene = Scene(ledger, DEFINITIONS.model_copy(update={"limits": limits}))
    schedules = scene.schedules.of("acme")
    schedules.create("hourly", {**HOURLY, "overlap": "allow", "catch_up": "10h"})
    if comes == "as a backfill":
        now = datetime.fromtimestamp(schedules.get("hourly").now_ms / 1000, UTC)
        assert schedules.backfill("hourly", now - timedelta(hours=5), now) == 5
        scene.sweep()
    else:
        scene.pass_time(5 * HOUR_S)
    ended: list[str] = []
    while len(ended) < 5:
        started = [run_id for run_id in scene.runs() if run_id not in ended]
        assert 1 <= len(started) <= 2
        for run_id in started:
            scene.end(run_id)
        ended += started
        scene.pass_time(6)  # until a schedule that a quota refused is looked at again

    assert counts(schedules.get("hourly"))[0] == 5
    scene.client.close()


# --- changes ----------------------------------------------------------------------------------------------------------------


def test_a_paused_schedule_runs_nothing_and_its_times_are_not_run_later(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    scene.schedules.pause("hourly", "the warehouse is closed")
    for _ in range(3):
        scene.pass_time()
    assert scene.runs() == []
    assert scene.schedules.get("hourly").pause_note == "the warehouse is closed"

    scene.schedules.resume("hourly")
    scene.sweep()
    assert scene.runs() == []
    scene.pass_time()

    assert counts(scene.schedules.get("hourly")) == (1, 0, 0, 0)


def test_a_trigger_starts_a_run_now_as_the_overlap_allows_and_moves_nothing(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    before = scene.schedules.get("hourly").next_ms
    scene.schedules.pause("hourly")

    first, second = scene.schedules.trigger("hourly"), scene.schedules.trigger("hourly")

    assert (first.outcome, second.outcome, second.run_id) == ("new", "skipped", "")
    assert scene.sent() == [first.run_id]
    assert scene.schedules.get("hourly").next_ms == before
    assert scene.schedules.get("hourly").state == "paused"


def test_a_trigger_may_queue_or_cancel(scene: Scene) -> None:
    for overlap in ("queue", "cancel_previous"):
        scene.schedules.create(overlap, {**HOURLY, "overlap": overlap})
        assert scene.schedules.trigger(overlap).outcome == "new"

    assert scene.schedules.trigger("queue").outcome == "queued"
    assert scene.schedules.trigger("cancel_previous").outcome == "new"
    assert [run.status for run in scene.schedules.get("cancel_previous").runs] == ["accepted", "cancelled"]


def test_a_backfill_runs_past_times_in_order_and_none_that_has_a_run(scene: Scene) -> None:
    scene.schedules.create("daily", {"cron": "0 7 * * *", "timezone": "Europe/Berlin", **TURN})
    start, end = datetime.fromisoformat("2026-03-28"), datetime.fromisoformat("2026-03-31")

    assert scene.schedules.backfill("daily", start, end) == 3
    for number in range(1, 4):
        scene.sweep()
        assert len(scene.runs()) == number
        scene.end(scene.schedules.get("daily").runs[0].run_id)
    assert scene.schedules.backfill("daily", start, end) == 3
    for _ in range(4):
        scene.sweep()

    record = scene.schedules.get("daily")
    assert counts(record) == (3, 0, 0, 0)
    labels = [scene.ledger.runs.request_of(run_id)[3]["scheduled_at"] for run_id in scene.runs()]
    assert labels == ["2026-03-28T07:00:00+01:00", "2026-03-29T07:00:00+02:00", "2026-03-30T07:00:00+02:00"]
    with pytest.raises(ConfigError, match="at most 1000 times"):
        scene.schedules.backfill("daily", datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2026-01-01"))


def test_a_backfill_of_runs_that_may_overlap_starts_them_at_once(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "allow"})

    scene.schedules.backfill(
        "hourly",
        datetime.fromisoformat("2026-01-01"),
        datetime.fromisoformat("2026-01-04"),
        labels={"requested_by": "anna"},
    )
    scene.sweep()
    scene.sweep()

    assert counts(scene.schedules.get("hourly")) == (73, 0, 0, 0)
    assert scene.ledger.runs.request_of(scene.runs()[0])[3]["requested_by"] == "anna"


def test_a_deleted_schedule_leaves_its_runs_and_no_key(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "overlap": "queue"})
    scene.pass_time()
    scene.pass_time()
    (run_id,) = scene.runs()

    scene.schedules.delete("hourly")
    scene.pass_time()

    assert scene.runs() == [run_id]
    assert list(scene.ledger.redis.scan_iter("*schedule*")) == []
    scene.end(run_id)
    with pytest.raises(ConfigError, match="there is no schedule 'hourly'"):
        scene.schedules.pause("hourly")


def test_replacing_a_schedule_keeps_its_times_unless_they_change(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    bring_nearer(scene.ledger.redis, HOUR_S)  # a time is due, and not run yet
    with pytest.raises(ConfigError, match="there is a schedule 'hourly' already"):
        scene.schedules.create("hourly", HOURLY)

    scene.schedules.create("hourly", {**HOURLY, "note": "new"}, replace=True)
    scene.sweep()
    assert scene.schedules.get("hourly").fired == 1

    scene.schedules.create("hourly", {**HOURLY, "every": "2h"}, replace=True)
    assert (scene.schedules.get("hourly").next_ms or 1) % 7_200_000 == 0


def test_definitions_stay_while_a_schedule_needs_them(scene: Scene) -> None:
    record = scene.schedules.create("hourly", HOURLY)
    key = definitions_key(None, shard_of(record.scope), record.digest)
    for _ in range(2):
        scene.pass_time()
        scene.end(scene.schedules.get("hourly").runs[0].run_id)

    assert scene.ledger.redis.pttl(key) == -1
    scene.schedules.delete("hourly")
    assert scene.ledger.redis.pttl(key) > 0


# --- tenants, and what a configuration declares -----------------------------------------------------------------------------


def test_a_tenant_sees_its_own_schedules_only(scene: Scene) -> None:
    scene.schedules.create("hourly", {**HOURLY, "note": "operator's"})
    for tenant in ("a", "a/b", "ä*"):
        scene.schedules.of(tenant).create("hourly", {**HOURLY, "note": tenant})

    for tenant in ("a", "a/b", "ä*"):
        (record,) = scene.schedules.of(tenant).list()
        assert (record.tenant, record.spec.note) == (tenant, tenant)
    assert [each.spec.note for each in scene.schedules.list()] == ["operator's"]
    scene.schedules.of("a").delete("hourly")
    assert len(scene.schedules.of("a/b").list()) == 1
    scene.pass_time()
    run = scene.schedules.of("a/b").get("hourly").runs[0]
    assert scene.ledger.redis.hget(run_key(None, run.run_id), "tenant") == "a/b"
    with pytest.raises(ConfigError, match="the label 'tenant' is 'b'"):
        scene.schedules.create("other", {**HOURLY, "labels": {"tenant": "b"}})


def declaring(**schedules: Any) -> Definitions:
    """The configuration with these schedules."""
    return DEFINITIONS.model_copy(
        update={"schedules": {name: Schedule.model_validate(each) for name, each in schedules.items()}}
    )


def test_apply_changes_what_differs_from_the_configuration_and_nothing_else(scene: Scene) -> None:
    scene.schedules.create("by-call", HOURLY)
    first = scene.with_definitions(declaring(a=HOURLY, b={**HOURLY, "labels": {"tenant": "acme"}}))
    assert [describe(each) for each in first.schedules.plan()] == [["+ a"], ["+ b (tenant acme)"]]
    first.schedules.apply()
    assert first.schedules.plan() == []
    assert [each.name for each in scene.schedules.list()] == ["a", "by-call"]

    second = scene.with_definitions(declaring(a={**HOURLY, "overlap": "queue"}))
    changes = second.schedules.plan()

    assert [describe(each) for each in changes] == [["~ a", "    overlap: (default) → queue"], ["- b (tenant acme)"]]
    assert len(scene.schedules.of("acme").list()) == 1, "a plan changes nothing"
    second.schedules.apply(changes)
    assert scene.schedules.of("acme").list() == []
    assert scene.schedules.get("a").spec.overlap == "queue"
    for each in (first, second):
        each.client.close()


def test_a_changed_configuration_is_a_change_of_each_schedule(scene: Scene) -> None:
    first = scene.with_definitions(declaring(a=HOURLY))
    first.schedules.apply()
    noted = scene.with_definitions(declaring(a={**HOURLY, "note": "x"}))
    assert [*noted.schedules.plan()[0].fields] == ["note"], "schedules are no part of the definitions of runs"
    edited = scene.with_definitions(declaring(a=HOURLY).model_copy(update={"chains": {}}))

    (change,) = edited.schedules.plan()
    edited.schedules.apply()

    assert [*change.fields] == ["definitions"]
    assert edited.schedules.plan() == []
    for each in (first, noted, edited):
        each.client.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"every": "1h", "turn": {"text": "a", "agent": "writter"}}, "did you mean 'writer'"),
        ({"every": "1h", "chain": "taly"}, "did you mean 'tally'"),
        (
            {"every": "1h", "chain": {"nodes": [{"node_id": "n", "kind": "tool", "name": "cuont"}], "entry_node": "n"}},
            "schedule 'a': nodes[0]",
        ),
        ({"every": "1h", "workflow": "none"}, "none"),
        ({"every": "1x", **TURN}, "expected a duration"),
        ({"every": "1h", "turn": {"text": "a", "agent": "writer", "session": " "}}, "the session's name is empty"),
    ],
)
def test_a_schedule_with_a_fault_is_refused(scene: Scene, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scene.schedules.create("a", fields)

    assert message in str(caught.value)
    assert scene.schedules.list() == []


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 101])
def test_a_name_has_letters_digits_and_a_few_marks(scene: Scene, name: str) -> None:
    with pytest.raises(ConfigError, match="schedule's name"):
        scene.schedules.create(name, HOURLY)


# --- watching ---------------------------------------------------------------------------------------------------------------


def test_lateness_is_counted_by_redis_clock(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    monkeypatch.setattr(metrics, "record_schedule_lateness", found.append)
    scene.schedules.create("hourly", HOURLY)
    record = scene.schedules.get("hourly")

    scene.pass_time(((record.next_ms or 0) - record.now_ms) / 1000 + 2)

    assert len(found) == 1
    assert 1.9 < found[0] < 4


def test_what_should_have_been_fired_is_found_cheaply(scene: Scene) -> None:
    scene.schedules.create("hourly", HOURLY)
    scene.schedules.create("paused", HOURLY)
    scene.schedules.pause("paused")
    store = ScheduleStore(scene.ledger)
    assert store.overdue(60) == []

    bring_nearer(scene.ledger.redis, 2 * HOUR_S)

    assert store.overdue(60) == ["/hourly"]
    assert store.overdue(3 * HOUR_S) == []


def test_a_schedule_that_cannot_be_read_holds_up_no_other(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.schedules.create(name, HOURLY)
    key = f"{shard_key(None, shard_of('/a'))}:schedule:/a"
    scene.ledger.redis.hset(key, "spec", '{"every": 3600, "timezone": "Mars/Base", "turn": {"text": "a"}}')

    scene.pass_time()

    assert scene.schedules.get("b").fired == 1
    assert "there is no time zone 'Mars/Base'" in str(scene.ledger.redis.hget(key, "error"))
    assert scene.due() == []
    scene.ledger.redis.hset(key, "spec", '{"every": 3600, "turn": {"text": "a"}}')
