"""What is said of facts: the colour, the reason and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cantata.health import Line, judged
from cantata.health.facts import Door, Facts, Fleet, Missing, Node, Shared, Store
from cantata.health.redis_checks import size
from cantata.models.definitions import Budget, Budgets, Limits, Rates
from cantata.state.fleet.load import QueueLoad
from cantata.state.fleet.registry import Worker
from cantata.state.limits.limiter import LimitUsage, Pressure

PLACE = "redis://redis:6379/0"
INFO: Mapping[str, Any] = {
    "redis_version": "7.2.4", "valkey_version": "9.1.2", "uptime_in_seconds": 7200, "connected_clients": 12, "maxclients": 10_000,
    "aof_enabled": 1, "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok",
    "aof_current_size": 5_600_000, "used_memory": 300_000_000, "maxmemory": 1_000_000_000, "maxmemory_policy": "noeviction",
    "total_system_memory": 8_000_000_000, "connected_slaves": 0,
}  # fmt: skip


def worker(
    name: str, *queues: str, version: str = "1.2.0", clock_off_s: float = 0.0, duplicate: str = "", worked_s: float = 60.0
) -> Worker:
    return Worker(
        name=name, queues=queues, concurrency=4, pid=1, host="one", version=version, started_at=100.0,
        seen_at=100.0 + worked_s - clock_off_s, clock_off_s=clock_off_s, duplicate=duplicate,
    )  # fmt: skip


def queue(ready: int = 0, workers: int = 1, oldest_wait_s: float | None = None) -> QueueLoad:
    return QueueLoad(ready=ready, leased=3, work=ready + 3, slots=4 * workers, workers=workers, oldest_wait_s=oldest_wait_s)


def store(answer_ms: float = 0.4, refusal: str = "", **info: Any) -> Store:
    return Store([Node(PLACE, {**INFO, **info})], answer_ms, refusal)


WORKERS = [worker("c@one", "coordinator"), worker("a@one", "agents"), worker("t@one", "tools")]
QUEUES = {name: queue() for name in ("coordinator", "agents", "tools")}


def fleet(**fields: Any) -> Fleet:
    usual: dict[str, Any] = {"workers": WORKERS, "sweep_age_s": 0.3, "runs_open": 2, "totals": {}, "queues": QUEUES}
    return Fleet(**{**usual, **fields})


def facts(**fields: Any) -> Facts:
    usual: dict[str, Any] = {"version": "1.2.0", "store": store(), "fleet": fleet()}
    return Facts(**{**usual, **fields})


def line(found: Facts, matter: str) -> Line:
    (only,) = (each for each in judged(found).lines if each.matter == matter)
    return only


def test_when_all_is_well_every_line_is_green_and_says_what_there_is() -> None:
    found = judged(
        facts(
            doors=[Door("gateway", "http://g", 3.2), Door("Flower", "http://f", 8.0)],
            stack="/here/.cantata",
            fleet=fleet(totals={"closed:succeeded": 1204, "closed:timed_out": 3, "accepted": 1209}),
        )
    )

    assert found.colour == "green"
    assert [(each.matter, each.said) for each in found.lines] == [
        ("Redis", "Valkey 9.1.2 at redis://redis:6379/0, up 2 h 00 min, answers in 0.4 ms"),
        ("disk", "AOF, 5.6 MB"),
        ("memory", "300.0 MB of 1.0 GB"),
        ("workers", "3, of version 1.2.0"),
        ("sweep", "300 ms ago"),
        ("queue coordinator", "3 of 4 slots in use, nothing waits"),
        ("queue agents", "3 of 4 slots in use, nothing waits"),
        ("queue tools", "3 of 4 slots in use, nothing waits"),
        ("runs", "2 open, 1,204 succeeded, 3 timed out"),
        ("gateway", "http://g answers in 3 ms"),
        ("Flower", "http://f answers in 8 ms"),
        ("stack", "all of it runs, in /here/.cantata"),
    ]
    assert {each.todo for each in found.lines} == {""}


REDIS = [
    (store(answer_ms=900.0), "Redis", "yellow", "answers in 900.0 ms, which slows every step", "slow commands"),
    (store(refusal="it is full"), "Redis", "red", "but takes no writes: it is full", ""),
    (store(connected_clients=9_000), "Redis", "yellow", "9,000 of the 10,000 connections of redis://redis:6379/0 are taken", "maxclients"),
    (store(aof_enabled=0), "disk", "yellow", "no AOF is written: runs under way are lost if it restarts", "appendonly yes"),
    (store(aof_last_write_status="err"), "disk", "red", "the AOF cannot be written, so writes are refused and runs wait", "free the disk"),
    (store(aof_last_bgrewrite_status="err"), "disk", "yellow", "was to be shortened, that failed", "the room on its disk"),
    (store(rdb_last_bgsave_status="err"), "disk", "yellow", "was to be saved as a snapshot, that failed", "the room on its disk"),
    (store(used_memory=850_000_000), "memory", "yellow", "850.0 MB of 1.0 GB; when it is full, writes are refused", "raise its maxmemory"),
    (store(used_memory=990_000_000), "memory", "red", "990.0 MB of 1.0 GB; when it is full, writes are refused", "raise its maxmemory"),
    (store(maxmemory=0, used_memory=7_900_000_000), "memory", "red", "7.9 GB of 8.0 GB, without maxmemory", "set maxmemory"),
    (store(maxmemory=0), "memory", "green", "300.0 MB of 8.0 GB, without maxmemory", ""),
    (
        store(maxmemory_policy="volatile-lru"),
        "memory",
        "yellow",
        "finished runs vanish early (maxmemory-policy volatile-lru)",
        "noeviction",
    ),
    (
        store(
            connected_slaves=2,
            slave0={"ip": "b", "port": 1, "state": "online", "lag": 0},
            slave1={"ip": "c", "port": 2, "state": "wait_bgsave", "lag": 0},
        ),
        "replicas",
        "yellow",
        "c:2 of 2 lag behind: what they miss is lost",
        "their logs",
    ),
    (
        store(connected_slaves=1, slave0={"ip": "b", "port": 1, "state": "online", "lag": 60}),
        "replicas",
        "yellow",
        "b:1 of 1 lag behind",
        "",
    ),
    (store(connected_slaves=1, slave0={"ip": "b", "port": 1, "state": "online", "lag": 1}), "replicas", "green", "1 follows", ""),
]

FLEET = [
    (fleet(workers=[]), "workers", "red", "nobody works, so runs wait", "submit worker coordinator agents tools"),
    (
        fleet(workers=[*WORKERS, worker("old@two", version="1.1.9")]),
        "workers",
        "yellow",
        "4, of version 1.1.9, 1.2.0; older than 1.2.0: old@two",
        "again",
    ),
    (fleet(workers=[worker("new@two", version="1.10.0")]), "workers", "yellow", "this command is of the older version 1.2.0", "up to date"),
    (
        fleet(workers=[worker(f"w{n}@x", version="1.0.0") for n in range(7)]),
        "workers",
        "yellow",
        "older than 1.2.0: w0@x, w1@x, w2@x, w3@x, w4@x and 2 more",
        "",
    ),
    (fleet(workers=[worker("t@two", clock_off_s=-90.0)]), "workers", "yellow", "clocks are off Redis's: t@two -90 s", "not harmed"),
    (
        fleet(workers=[worker("t@one", duplicate="process 7 of one")]),
        "workers",
        "yellow",
        "of one name, so they count as one: t@one and process 7 of one",
        "--name",
    ),
    (fleet(sweep_age_s=75.0), "sweep", "red", "nobody has swept for 1 min 15 s: timers do not fire", "sweep_failed"),
    (fleet(sweep_age_s=None, workers=[]), "sweep", "red", "nobody has swept yet", "start a worker"),
    (fleet(sweep_age_s=None), "sweep", "red", "nobody has swept yet: timers do not fire", "sweep_failed"),
    (
        fleet(sweep_age_s=None, workers=[worker("t@one", worked_s=2.0, clock_off_s=90.0)]),
        "sweep",
        "yellow",
        "nobody has swept yet: the workers have just started",
        "again",
    ),
    (
        fleet(handed_back=["step 's' of run 'r': no script", "another"]),
        "steps",
        "yellow",
        "step 's' of run 'r': no script; and 1 more",
        "start a worker",
    ),
    (
        fleet(queues={"gpu": queue(ready=2, workers=0, oldest_wait_s=7.0)}),
        "queue gpu",
        "red",
        "no worker serves queue 'gpu'; 2 waiting, the oldest for 7.0 s",
        "`submit worker gpu`",
    ),
    (fleet(queues={"gpu": queue(workers=0)}), "queue gpu", "yellow", "no worker serves queue 'gpu'; nothing waits", "`submit worker gpu`"),
    (fleet(queues={"coordinator": queue(workers=0)}), "queue coordinator", "red", "nothing waits", "`submit worker coordinator`"),
    (
        fleet(queues={"tools": queue(ready=900, oldest_wait_s=61.0)}),
        "queue tools",
        "yellow",
        "900 waiting, the oldest for 1 min 01 s",
        "more workers",
    ),
    (fleet(queues={"tools": queue(ready=9, oldest_wait_s=1.0)}), "queue tools", "green", "9 waiting, the oldest for 1.0 s", ""),
    (
        fleet(queues=Missing("the broker gave no answer within 4 s")),
        "broker",
        "red",
        "is not known: the broker gave no answer within 4 s",
        "",
    ),
    (
        fleet(totals={"closed:failed": 10, "closed:succeeded": 1_000_000}, last_ended={"failed": 10, "timed_out": 2, "succeeded": 88}),
        "runs",
        "yellow",
        "10 failed, 1,000,000 succeeded; of the last 100 that ended 10 failed and 2 timed out",
        "--status failed",
    ),
    (
        fleet(totals={"closed:failed": 9_000, "closed:succeeded": 200}, last_ended={"failed": 10, "succeeded": 90}),
        "runs",
        "green",
        "2 open, 9,000 failed, 200 succeeded",
        "",
    ),
    (fleet(last_ended={"exhausted": 20}), "runs", "yellow", "of the last 20 that ended 20 exhausted", "--status exhausted"),
    (fleet(totals={"closed:failed": 3}, last_ended={"failed": 3}), "runs", "green", "2 open, 3 failed", ""),
    (fleet(last_ended={"cancelled": 50, "succeeded": 50}), "runs", "green", "2 open", ""),
]

DOORS = [
    (Door("gateway", "http://g", fault="does not answer within 3 s"), "red", "http://g does not answer within 3 s; runs go on without it"),
    (Door("Flower", "http://f", fault="cannot be reached (refused)"), "yellow", "cannot be reached (refused); runs go on without it"),
    (Door("gateway", "http://g", 4.0, "no worker serves queue 'agents'"), "yellow", "but is not ready: no worker serves queue 'agents'"),
    (Door("Flower", "http://f", 2500.0), "yellow", "answers in 2500 ms, which is slow"),
]  # fmt: skip

RATED = Limits(models={"a/b": Rates(rpm=10)}, budgets=Budgets(day=Budget(usd=10.0, tokens=1000)))


def shared(waiting: int = 0, paused_s: float = 0.0, tokens: int = 0, usd: float = 0.0) -> Shared:
    return Shared(RATED, LimitUsage({"a/b": Pressure(waiting, paused_s)}, tokens, usd))


LIMITS = [
    (shared(), "green", "nothing waits for them"),
    (shared(waiting=12), "green", "12 wait for a/b"),
    (shared(paused_s=8.0), "yellow", "providers asked for a pause: a/b for 8.0 s"),
    (shared(tokens=900), "yellow", "90% of the budget of this day are spent"),
    (shared(usd=10.0), "red", "the budget of this day is spent: runs end as exhausted"),
    (Missing("desk.yaml: line 3: no"), "yellow", "how they stand is not known: desk.yaml: line 3: no"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "matter", "colour", "said", "todo"), REDIS, ids=[case[3] for case in REDIS])
def test_of_redis(found: Store, matter: str, colour: str, said: str, todo: str) -> None:
    told = line(facts(store=found), matter)

    assert (told.colour, said in told.said, todo in told.todo) == (colour, True, True), told


@pytest.mark.parametrize(("found", "matter", "colour", "said", "todo"), FLEET, ids=[case[3] for case in FLEET])
def test_of_the_fleet(found: Fleet, matter: str, colour: str, said: str, todo: str) -> None:
    told = line(facts(fleet=found), matter)

    assert (told.colour, said in told.said, todo in told.todo) == (colour, True, True), told


@pytest.mark.parametrize(("door", "colour", "said"), DOORS, ids=[case[2] for case in DOORS])
def test_of_the_gateway_and_flower(door: Door, colour: str, said: str) -> None:
    told = line(facts(doors=[door]), door.name)

    assert (told.colour, said in told.said) == (colour, True), told


@pytest.mark.parametrize(("found", "colour", "said"), LIMITS, ids=[case[2] for case in LIMITS])
def test_of_shared_limits(found: Shared | Missing, colour: str, said: str) -> None:
    told = line(facts(shared=found), "limits")

    assert (told.colour, said in told.said) == (colour, True), told


def test_nothing_is_said_of_what_there_is_not() -> None:
    matters = {each.matter for each in judged(facts()).lines}

    assert not {"limits", "broker", "gateway", "Flower", "stack", "replicas"} & matters


def test_the_whole_is_as_its_worst_line() -> None:
    assert judged(facts(store=store(aof_enabled=0))).colour == "yellow"
    assert judged(facts(store=store(aof_enabled=0), fleet=fleet(workers=[]))).colour == "red"


def test_a_redis_that_is_away_is_told_once() -> None:
    away = Missing("Redis at x cannot be reached (refused); start it or mend REDIS_URL")

    assert [each.said for each in judged(facts(store=away, fleet=away, shared=away)).lines] == [away.why]


def test_a_stack_that_does_not_serve_changed_code_is_told() -> None:
    told = line(facts(stack="/here", code_fault="/here/steps.py: line 3: invalid syntax"), "stack")

    assert (told.colour, told.todo) == ("yellow", "correct the file; it is noticed")
    assert told.said == "the stack in /here still serves the code of before: /here/steps.py: line 3: invalid syntax"


def test_workers_that_serve_different_code_are_told() -> None:
    one, other = (
        worker(name, "tools").model_copy(update={"code": code}) for name, code in (("a@one", ("steps@1", "x@1")), ("b@two", ("steps@2",)))
    )

    told = line(facts(fleet=fleet(workers=[*WORKERS, one, other])), "code")
    same = line(facts(fleet=fleet(workers=[*WORKERS, one])), "code")

    assert (told.colour, told.todo) == ("yellow", "restart the workers that serve the older one")
    assert told.said == "workers serve different versions of a module: steps: 1 by a@one, 2 by b@two"
    assert (same.colour, same.said) == ("green", "every worker serves the same: steps@1, x@1")


def test_a_process_of_the_stack_that_does_not_run_is_named() -> None:
    told = line(facts(stack="/here", dead=["tools"]), "stack")

    assert (told.colour, told.said) == ("yellow", "of the stack in /here tools does not run")


def test_each_node_of_a_cluster_has_its_lines() -> None:
    nodes = Store([Node("a:1", INFO), Node("b:2", {**INFO, "used_memory": 999_000_000})], 1.0)

    told = {each.matter: each.colour for each in judged(facts(store=nodes, broker="redis://other")).lines}

    assert (told["memory a:1"], told["memory b:2"], told["broker"]) == ("green", "red", "green")


PAGE = (Path(__file__).parents[3] / "docs" / "status.md").read_text()


def test_the_page_has_every_matter_and_shows_lines_as_they_are() -> None:
    every = {case[1].partition(" ")[0] for case in (*REDIS, *FLEET)} | {door.name for door, _, _ in DOORS} | {"limits", "stack"}

    assert {matter for matter in every if not re.search(rf"^\| [^|]*\b{matter}\b", PAGE, re.MULTILINE)} == set()
    shown = re.findall(r"^(green|yellow|red) +(\w+(?: \w+)?)  +(.*)$", PAGE, re.MULTILINE)
    mixed = fleet(workers=[*WORKERS, worker("old@two", version="1.1.9")], totals={"closed:succeeded": 1204, "closed:timed_out": 3})
    told = [(each.colour, each.matter, each.said) for each in judged(facts(fleet=mixed)).lines]
    assert [each for each in shown if not each[1].startswith("queue")] == [each for each in told if not each[1].startswith("queue")]


@pytest.mark.parametrize(("count", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_340_000, "2.3 MB"), (8e15, "8000.0 TB")])
def test_sizes(count: float, said: str) -> None:
    assert size(count) == said
