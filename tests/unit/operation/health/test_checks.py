"""Checks of facts: status, message and action."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cantata.engine.fleet.holds import PausedQueue
from cantata.engine.fleet.load import FleetLoad, QueueLoad
from cantata.engine.fleet.lost_workers import LostWorker
from cantata.engine.fleet.registry import Worker
from cantata.engine.limits.limiter import LimitUsage, PausedModel, Pressure
from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from cantata.ledger.parked import ParkedItem
from cantata.operation.health import Check, evaluate
from cantata.operation.health.checks import size
from cantata.operation.health.facts import (
    Facts,
    FleetFacts,
    LimitFacts,
    RedisFacts,
    RedisNode,
    ServiceProbe,
    Unavailable,
)

ADDRESS = "redis://redis:6379/0"
INFO: Mapping[str, Any] = {
    "redis_version": "7.2.4", "valkey_version": "9.1.2", "uptime_in_seconds": 7200, "connected_clients": 12, "maxclients": 10_000,
    "aof_enabled": 1, "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok",
    "aof_current_size": 5_600_000, "used_memory": 300_000_000, "maxmemory": 1_000_000_000, "maxmemory_policy": "noeviction",
    "total_system_memory": 8_000_000_000, "connected_slaves": 0,
}  # fmt: skip


def worker(
    name: str,
    *queues: str,
    version: str = "1.2.0",
    clock_off_s: float = 0.0,
    duplicate: str = "",
    worked_s: float = 60.0,
) -> Worker:
    return Worker(
        name=name,
        queues=queues,
        concurrency=4,
        pid=1,
        host="one",
        version=version,
        started_at=100.0,
        seen_at=100.0 + worked_s - clock_off_s,
        clock_off_s=clock_off_s,
        duplicate=duplicate,
    )


def queue(ready: int = 0, workers: int = 1, oldest_wait_s: float | None = None) -> QueueLoad:
    return QueueLoad(
        ready=ready, leased=3, work=ready + 3, slots=4 * workers, workers=workers, oldest_wait_s=oldest_wait_s
    )


def redis(answer_ms: float = 0.4, write_error: str = "", **info: Any) -> RedisFacts:
    return RedisFacts([RedisNode(ADDRESS, {**INFO, **info})], answer_ms, write_error)


WORKERS = [worker("c@one", "coordinator"), worker("a@one", "agents"), worker("t@one", "tools")]
QUEUES = {name: queue() for name in ("coordinator", "agents", "tools")}


LOAD = FleetLoad(
    WORKERS,
    {},
    runs_open=2,
    runs_kept=2,
    steps_ready=0,
    totals={},
    sweep_age_s=0.3,
    memory_bytes=0,
    memory_limit_bytes=0,
)


def fleet(**fields: Any) -> FleetFacts:
    own = {name: fields.pop(name) for name in ("queues", "last_ended", "refused_steps", "parked") if name in fields}
    return FleetFacts(replace(LOAD, **fields), **{"queues": QUEUES, **own})


def parked(item_id: str) -> ParkedItem:
    return ParkedItem(
        id=item_id,
        duty="timers",
        item=f"retry|{item_id}|a",
        effect="it does not fire",
        error="ValueError: bad",
        since=1.0,
        at=2.0,
        tries=3,
    )


def facts(**fields: Any) -> Facts:
    usual: dict[str, Any] = {"version": "1.2.0", "redis": redis(), "fleet": fleet()}
    return Facts(**{**usual, **fields})


def check(found: Facts, name: str) -> Check:
    (only,) = (each for each in evaluate(found).checks if each.name == name)
    return only


def test_without_faults_every_check_is_ok_and_shows_the_figures() -> None:
    found = evaluate(
        facts(
            services=[ServiceProbe("gateway", "http://g", 3.2), ServiceProbe("Flower", "http://f", 8.0)],
            stack_home="/here/.cantata",
            fleet=fleet(totals={"closed:succeeded": 1204, "closed:timed_out": 3, "accepted": 1209, "lost": 2}),
        )
    )

    assert found.status == "ok"
    assert [(each.name, each.message) for each in found.checks] == [
        ("Redis", "Valkey 9.1.2 at redis://redis:6379/0, up 2 h 00 min, answers in 0.4 ms"),
        ("disk", "AOF, 5.6 MB"),
        ("memory", "300.0 MB of 1.0 GB"),
        ("workers", "3, of version 1.2.0"),
        ("sweep", "300 ms ago"),
        ("queue coordinator", "3 of 4 slots in use, nothing waiting"),
        ("queue agents", "3 of 4 slots in use, nothing waiting"),
        ("queue tools", "3 of 4 slots in use, nothing waiting"),
        ("runs", "2 open, 1,204 succeeded, 3 timed out; steps that lost their worker: 2"),
        ("gateway", "http://g answers in 3 ms"),
        ("Flower", "http://f answers in 8 ms"),
        ("stack", "all processes are running, in /here/.cantata"),
    ]
    assert {each.action for each in found.checks} == {""}


def test_a_paused_model_is_named_with_its_providers_words() -> None:
    paused = PausedModel("openai/m", since=1_795_176_000, until=1_795_176_060, asked_s=3600, message="slow down")

    found = check(facts(fleet=fleet(paused_models=[paused])), "model openai/m")

    assert (found.status, found.message) == ("degraded", "paused since 12:00:00 UTC, until 12:01:00 UTC: slow down")
    assert "`submit models resume openai/m`" in found.action


AT = 1_795_176_000.0
PAUSED = PausedQueue(queue="tools", since=AT, by="ann")


@pytest.mark.parametrize(("workers", "ready"), [(1, 3), (0, 0)], ids=["served", "unserved"])
@pytest.mark.parametrize("has_broker", [True, False])
@pytest.mark.parametrize("is_followed", [True, False])
def test_a_paused_queue_is_degraded_and_says_who_paused_it(
    workers: int, ready: int, has_broker: bool, is_followed: bool
) -> None:
    load = queue(ready=ready, workers=workers).model_copy(update={"paused": PAUSED})
    serving = worker("t@one", "tools").model_copy(update={"held": ("tools",) if is_followed else ()})
    seen = replace(fleet(queues={"tools": load}, workers=[serving]), has_broker=has_broker)

    found = check(facts(fleet=seen), "queue tools")

    waits = {(True, 3): ", 3 waiting", (True, 0): ", nothing waiting"}.get((has_broker, ready), "")
    assert (found.status, found.message) == (
        "degraded",
        f"paused since 2026-11-20 12:00 UTC by ann; 3 under way{waits}; deadlines of its steps keep running"
        + ("" if is_followed else "; not followed by t@one, as by a worker of an older version"),
    )
    assert found.action == "resume it with `submit queues resume tools`"


def test_a_drained_worker_is_named_and_is_why_nobody_serves_its_queue() -> None:
    drained = worker("t@one", "tools").model_copy(update={"state": "drained", "drained_by": "ann", "drained_since": AT})
    seen = fleet(workers=[*WORKERS[:2], drained], queues={"tools": queue(ready=2, workers=0)})

    workers, tools = check(facts(fleet=seen), "workers"), check(facts(fleet=seen), "queue tools")

    assert (workers.status, workers.message) == ("ok", "3, of version 1.2.0; taking no work: t@one (drained, by ann)")
    assert (tools.status, tools.message) == (
        "failing",
        "no worker serves queue 'tools', since t@one is drained by ann; 2 waiting",
    )
    assert tools.action == "let one take work again with `submit workers undrain t@one`"


REDIS = [
    (redis(answer_ms=900.0), "Redis", "degraded", "answers in 900.0 ms, which slows every step", "slow commands"),
    (redis(write_error="it is full"), "Redis", "failing", "but refuses writes: it is full", ""),
    (
        redis(connected_clients=9_000),
        "Redis",
        "degraded",
        "9,000 of the 10,000 connections of redis://redis:6379/0 are in use",
        "maxclients",
    ),
    (
        redis(aof_enabled=0),
        "disk",
        "degraded",
        "the AOF is off: open runs are lost if Redis restarts",
        "appendonly yes",
    ),
    (
        redis(aof_last_write_status="err"),
        "disk",
        "failing",
        "the AOF cannot be written, so writes are refused and runs wait",
        "free space on the disk",
    ),
    (
        redis(aof_last_bgrewrite_status="err"),
        "disk",
        "degraded",
        "the last AOF rewrite failed",
        "the free space on its disk",
    ),
    (
        redis(rdb_last_bgsave_status="err"),
        "disk",
        "degraded",
        "the last RDB snapshot failed",
        "the free space on its disk",
    ),
    (
        redis(used_memory=850_000_000),
        "memory",
        "degraded",
        "850.0 MB of 1.0 GB; when it is full, writes are refused",
        "raise its maxmemory",
    ),
    (
        redis(used_memory=990_000_000),
        "memory",
        "failing",
        "990.0 MB of 1.0 GB; when it is full, writes are refused",
        "raise its maxmemory",
    ),
    (
        redis(maxmemory=0, used_memory=7_900_000_000),
        "memory",
        "failing",
        "7.9 GB of 8.0 GB, without maxmemory",
        "set maxmemory",
    ),
    (redis(maxmemory=0), "memory", "ok", "300.0 MB of 8.0 GB, without maxmemory", ""),
    (
        redis(maxmemory_policy="volatile-lru"),
        "memory",
        "degraded",
        "finished runs are evicted early (maxmemory-policy volatile-lru)",
        "noeviction",
    ),
    (
        redis(
            connected_slaves=2,
            slave0={"ip": "b", "port": 1, "state": "online", "lag": 0},
            slave1={"ip": "c", "port": 2, "state": "wait_bgsave", "lag": 0},
        ),
        "replicas",
        "degraded",
        "c:2 of 2 lag behind: writes that they lack are lost",
        "their logs",
    ),
    (
        redis(connected_slaves=1, slave0={"ip": "b", "port": 1, "state": "online", "lag": 60}),
        "replicas",
        "degraded",
        "b:1 of 1 lag behind",
        "",
    ),
    (
        redis(connected_slaves=1, slave0={"ip": "b", "port": 1, "state": "online", "lag": 1}),
        "replicas",
        "ok",
        "1 in sync",
        "",
    ),
]

LOST = LostWorker(name="gone@two", queues=("tools",), host="two", pid=7, seen_at=1_700_000_000.0, steps=("run-1 a",))
FLEET = [
    (
        fleet(workers=[], write_error="it is full"),
        "workers",
        "degraded",
        "unknown while Redis refuses writes",
        "see the check Redis",
    ),
    (
        fleet(lost_workers=[LOST]),
        "lost workers",
        "degraded",
        "1 ended without a shutdown, or are frozen: gone@two (tools), last seen 22:13:20 UTC; it had run-1 a",
        "start another",
    ),
    (
        fleet(lost_workers=[LOST] * 5),
        "lost workers",
        "degraded",
        "; and 2 more",
        "start another",
    ),
    (
        fleet(memory_full_in_s=7200.0),
        "forecast",
        "degraded",
        "Redis is full in about 2 h 00 min if it grows as in the last hour",
        "raise its maxmemory",
    ),
    (fleet(memory_full_in_s=90_000.0), "forecast", "ok", "Redis is full in about", ""),
    (
        fleet(workers=[]),
        "workers",
        "failing",
        "no worker is running, so runs wait",
        "start workers with `submit worker`",
    ),
    (
        fleet(workers=[*WORKERS, worker("old@two", version="1.1.9")]),
        "workers",
        "degraded",
        "4, of version 1.1.9, 1.2.0; older than 1.2.0: old@two",
        "restart them",
    ),
    (
        fleet(workers=[worker("new@two", version="1.10.0")]),
        "workers",
        "degraded",
        "this command has the older version 1.2.0",
        "upgrade",
    ),
    (
        fleet(workers=[worker(f"w{n}@x", version="1.0.0") for n in range(7)]),
        "workers",
        "degraded",
        "older than 1.2.0: w0@x, w1@x, w2@x, w3@x, w4@x and 2 more",
        "",
    ),
    (
        fleet(workers=[worker("t@two", clock_off_s=-90.0)]),
        "workers",
        "degraded",
        "clocks differ from Redis's: t@two -90 s",
        "not affected",
    ),
    (
        fleet(workers=[worker("t@one", duplicate="process 7 of one")]),
        "workers",
        "degraded",
        "same name, so counted as one: t@one and process 7 of one",
        "--name",
    ),
    (fleet(sweep_age_s=75.0), "sweep", "failing", "no sweep for 1 min 15 s: timers do not fire", "sweep_failed"),
    (
        fleet(sweep_age_s=75.0, sweep_fault="permits: WRONGTYPE"),
        "sweep",
        "failing",
        "no complete sweep (permits: WRONGTYPE) for 1 min 15 s: timers do not fire",
        "shard_sweep_failed",
    ),
    (
        fleet(parked=[parked("5-ab"), parked("7-cd")]),
        "parked",
        "degraded",
        "2 that the sweep cannot handle: 5-ab (timers retry|5-ab|a), 7-cd (timers retry|7-cd|a); the first: ValueError: bad",
        "`submit parked retry 5-ab`, or `submit parked drop 5-ab`; `submit parked list` lists all",
    ),
    (
        fleet(parked=[parked(f"{n}-x") for n in range(7)]),
        "parked",
        "degraded",
        "2-x (timers retry|2-x|a) and 4 more; the first",
        "list",
    ),
    (fleet(sweep_age_s=None, workers=[]), "sweep", "failing", "no sweep yet", "start a worker"),
    (fleet(sweep_age_s=None), "sweep", "failing", "no sweep yet: timers do not fire", "sweep_failed"),
    (
        fleet(sweep_age_s=None, workers=[worker("t@one", worked_s=2.0, clock_off_s=90.0)]),
        "sweep",
        "degraded",
        "no sweep yet: the workers have just started",
        "again",
    ),
    (
        fleet(refused_steps=["step 's' of run 'r': no script", "another"]),
        "steps",
        "degraded",
        "step 's' of run 'r': no script; and 1 more",
        "start a worker",
    ),
    (
        fleet(refused_steps=["step 's' of run 'r': the code does not follow the run's history"]),
        "steps",
        "degraded",
        "does not follow",
        "correct the code",
    ),
    (
        fleet(queues={"gpu": queue(ready=2, workers=0, oldest_wait_s=7.0)}),
        "queue gpu",
        "failing",
        "no worker serves queue 'gpu'; 2 waiting, the oldest for 7.0 s",
        "`submit worker gpu`",
    ),
    (
        fleet(queues={"gpu": queue(workers=0)}),
        "queue gpu",
        "degraded",
        "no worker serves queue 'gpu'; nothing waiting",
        "`submit worker gpu`",
    ),
    (
        fleet(queues={"coordinator": queue(workers=0)}),
        "queue coordinator",
        "failing",
        "nothing waiting",
        "`submit worker coordinator`",
    ),
    (
        fleet(queues={"tools": queue(ready=900, oldest_wait_s=61.0)}),
        "queue tools",
        "degraded",
        "900 waiting, the oldest for 1 min 01 s",
        "more workers",
    ),
    (
        fleet(queues={"tools": queue(ready=9, oldest_wait_s=1.0)}),
        "queue tools",
        "ok",
        "9 waiting, the oldest for 1.0 s",
        "",
    ),
    (
        fleet(queues=Unavailable("the broker gave no answer within 4 s")),
        "broker",
        "failing",
        "cannot be read: the broker gave no answer within 4 s",
        "",
    ),
    (
        fleet(
            totals={"closed:failed": 10, "closed:succeeded": 1_000_000},
            last_ended={"failed": 10, "timed_out": 2, "succeeded": 88},
        ),
        "runs",
        "degraded",
        "10 failed, 1,000,000 succeeded; of the last 100 that ended, 10 failed and 2 timed out",
        "--status failed",
    ),
    (
        fleet(totals={"closed:failed": 9_000, "closed:succeeded": 200}, last_ended={"failed": 10, "succeeded": 90}),
        "runs",
        "ok",
        "2 open, 9,000 failed, 200 succeeded",
        "",
    ),
    (
        fleet(last_ended={"exhausted": 20}),
        "runs",
        "degraded",
        "of the last 20 that ended, 20 exhausted",
        "--status exhausted",
    ),
    (fleet(totals={"closed:failed": 3}, last_ended={"failed": 3}), "runs", "ok", "2 open, 3 failed", ""),
    (fleet(last_ended={"cancelled": 50, "succeeded": 50}), "runs", "ok", "2 open", ""),
    (
        fleet(totals={"closed:failed": 3, "retried": 2}, last_ended={"retried": 20}),
        "runs",
        "ok",
        "2 open, 3 failed, 2 retried",
        "",
    ),
]

SERVICES = [
    (
        ServiceProbe("gateway", "http://g", fault="does not answer within 3 s"),
        "failing",
        "http://g does not answer within 3 s; runs continue without it",
    ),
    (
        ServiceProbe("Flower", "http://f", fault="cannot be reached (refused)"),
        "degraded",
        "cannot be reached (refused); runs continue without it",
    ),
    (
        ServiceProbe("gateway", "http://g", 4.0, "no worker serves queue 'agents'"),
        "degraded",
        "but is not ready: no worker serves queue 'agents'",
    ),
    (ServiceProbe("Flower", "http://f", 2500.0), "degraded", "answers in 2500 ms, which is slow"),
]

RATED = Limits(models={"a/b": Rates(rpm=10)}, budgets=Budgets(day=Budget(usd=10.0, tokens=1000)))


def limits(waiting: int = 0, tokens: int = 0, usd: float = 0.0, budget: Budget | None = None) -> LimitFacts:
    rated = RATED if budget is None else RATED.model_copy(update={"budgets": Budgets(day=budget)})
    return LimitFacts(rated, LimitUsage({"a/b": Pressure(waiting)}, tokens, usd))


LIMITS = [
    (limits(), "ok", "no calls waiting"),
    (limits(waiting=12), "ok", "12 waiting for a/b"),
    (limits(tokens=900), "degraded", "90% of the daily budget is spent"),
    (limits(usd=10.0), "failing", "the daily budget is spent: runs end as exhausted"),
    (limits(budget=Budget(usd=0.0)), "failing", "the daily budget is spent: runs end as exhausted"),
    (limits(tokens=5000, budget=Budget(usd=10.0)), "ok", "no calls waiting"),
    (Unavailable("team.yaml: line 3: no"), "degraded", "the limits cannot be read: team.yaml: line 3: no"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "name", "status", "message", "action"), REDIS, ids=[case[3] for case in REDIS])
def test_redis(found: RedisFacts, name: str, status: str, message: str, action: str) -> None:
    result = check(facts(redis=found), name)

    assert (result.status, message in result.message, action in result.action) == (status, True, True), result


@pytest.mark.parametrize(("found", "name", "status", "message", "action"), FLEET, ids=[case[3] for case in FLEET])
def test_fleet(found: FleetFacts, name: str, status: str, message: str, action: str) -> None:
    result = check(facts(fleet=found), name)

    assert (result.status, message in result.message, action in result.action) == (status, True, True), result


@pytest.mark.parametrize(("probe", "status", "message"), SERVICES, ids=[case[2] for case in SERVICES])
def test_gateway_and_flower(probe: ServiceProbe, status: str, message: str) -> None:
    result = check(facts(services=[probe]), probe.name)

    assert (result.status, message in result.message) == (status, True), result


@pytest.mark.parametrize(("found", "status", "message"), LIMITS, ids=[case[2] for case in LIMITS])
def test_shared_limits(found: LimitFacts | Unavailable, status: str, message: str) -> None:
    result = check(facts(limits=found), "limits")

    assert (result.status, message in result.message) == (status, True), result


def test_without_a_broker_it_is_told_which_queues_nobody_serves_and_of_no_other() -> None:
    queues = {"coordinator": queue(workers=0), "agents": queue(workers=0), "tools": queue()}
    found = facts(fleet=replace(fleet(queues=queues), has_broker=False))

    assert (check(found, "broker").status, check(found, "queue coordinator").status) == ("ok", "failing")
    assert check(found, "queue agents").status == "degraded"
    assert "queue tools" not in [each.name for each in evaluate(found).checks]


def test_absent_parts_have_no_check() -> None:
    names = {each.name for each in evaluate(facts()).checks}

    assert not {"limits", "broker", "gateway", "Flower", "stack", "replicas"} & names


def test_the_status_of_a_report_is_that_of_its_worst_check() -> None:
    assert evaluate(facts(redis=redis(aof_enabled=0))).status == "degraded"
    assert evaluate(facts(redis=redis(aof_enabled=0), fleet=fleet(workers=[]))).status == "failing"


def test_an_unreachable_redis_is_reported_once() -> None:
    away = Unavailable("Redis at x cannot be reached (refused); start it or correct REDIS_URL")

    assert [each.message for each in evaluate(facts(redis=away, fleet=away, limits=away)).checks] == [away.reason]


def test_a_stack_that_does_not_serve_changed_code_is_reported() -> None:
    result = check(facts(stack_home="/here", code_fault="/here/steps.py: line 3: invalid syntax"), "stack")

    assert (result.status, result.action) == ("degraded", "correct the file; it is then reloaded")
    assert result.message == "the stack in /here still serves the previous code: /here/steps.py: line 3: invalid syntax"


def test_workers_that_serve_different_code_are_reported() -> None:
    one, other = (
        worker(name, "tools").model_copy(update={"code": code})
        for name, code in (("a@one", ("steps@1", "x@1")), ("b@two", ("steps@2",)))
    )

    result = check(facts(fleet=fleet(workers=[*WORKERS, one, other])), "code")
    same = check(facts(fleet=fleet(workers=[*WORKERS, one])), "code")

    assert (result.status, result.action) == ("degraded", "restart the workers that serve the older one")
    assert result.message == "workers serve different versions of a module: steps: 1 by a@one, 2 by b@two"
    assert (same.status, same.message) == ("ok", "every worker serves the same: steps@1, x@1")


def test_a_worker_that_cannot_import_a_module_is_named() -> None:
    broken = worker("tools2@vm", "tools").model_copy(
        update={"code_faults": {"shop": "shop.py line 25: invalid syntax"}}
    )

    result = check(facts(fleet=fleet(workers=[*WORKERS, broken])), "code")

    assert (result.status, result.message) == (
        "failing",
        "tools2@vm cannot import shop: shop.py line 25: invalid syntax",
    )


def test_a_process_of_the_stack_that_does_not_run_is_named() -> None:
    result = check(facts(stack_home="/here", dead_processes=["tools"]), "stack")

    assert (result.status, result.message) == ("degraded", "of the stack in /here, tools is not running")


def test_each_node_of_a_cluster_has_its_checks() -> None:
    nodes = RedisFacts([RedisNode("a:1", INFO), RedisNode("b:2", {**INFO, "used_memory": 999_000_000})], 1.0)

    result = {each.name: each.status for each in evaluate(facts(redis=nodes, broker="redis://other")).checks}

    assert (result["memory a:1"], result["memory b:2"], result["broker"]) == ("ok", "failing", "ok")


PAGE = (Path(__file__).parents[4] / "docs" / "status.md").read_text()


def test_the_page_names_every_check_and_shows_them_as_printed() -> None:
    every = (
        {case[1].partition(" ")[0] for case in (*REDIS, *FLEET)}
        | {probe.name for probe, _, _ in SERVICES}
        | {"limits", "stack"}
    )

    assert {name for name in every if not re.search(rf"^\| [^|]*\b{name}\b", PAGE, re.MULTILINE)} == set()
    shown = re.findall(r"^(ok|degraded|failing) +(\w+(?: \w+)?)  +(.*)$", PAGE, re.MULTILINE)
    totals = {"closed:succeeded": 1204, "closed:timed_out": 3, "lost": 2}
    mixed = fleet(workers=[*WORKERS, worker("old@two", version="1.1.9")], totals=totals)
    result = [(each.status, each.name, each.message) for each in evaluate(facts(fleet=mixed)).checks]
    assert [each for each in shown if not each[1].startswith("queue")] == [
        each for each in result if not each[1].startswith("queue")
    ]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_340_000, "2.3 MB"), (8e15, "8000.0 TB")]
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
