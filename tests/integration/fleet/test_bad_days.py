"""What goes wrong around the workers: runs wait or go on, nothing is lost, and `submit status` says what is wrong in a sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.flows.definitions import Tool
from cantata.ledger.redis.connection import connect
from tests.integration.fleet import conftest
from tests.integration.fleet.bad_days import TOP, Town
from tests.integration.fleet.bad_days import town as a_town
from tests.integration.fleet.conftest import Journal, tool
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are hurt in ways that Linux has")

MANY = 12


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    definitions = conftest.definitions()
    tools = {**definitions.tools, "paint": Tool(function="fleet_tools:slow", queue="gpu")}
    with a_town(definitions.model_copy(update={"tools": tools})) as town:
        yield town


@pytest.fixture(scope="module")
def client(town: Town) -> Iterator[Client]:
    with town.client() as client:
        yield client


def begin(client: Client, journal: Journal, *, seconds: float = 0.15) -> ChainRun:
    """A run of many steps, one after the other; the first has begun, and half of them wait for `check_ends_well`."""
    names = [f"s{number}" for number in range(MANY)]
    following = [*names[1 : MANY // 2], "gate", *names[MANY // 2 + 1 :], ""]
    gate = {
        "node_id": "gate",
        "kind": "wait",
        "next_node": names[MANY // 2],
    }  # so however long the bad day takes to come, the run waits
    nodes = [
        tool(
            name,
            "slow",
            journal=str(journal.path),
            mark=name,
            seconds=seconds,
            **({"next_node": after} if after else {}),
        )
        for name, after in zip(names, following, strict=True)
    ]
    run = client.submit_chain({"nodes": [*nodes, gate], "entry_node": "s0"})
    until(lambda: journal.of("start", "s0"), "the first step")
    return run


def check_ends_well(run: ChainRun, journal: Journal) -> None:
    """It goes on; all is done, and each step finished once."""
    run.signal("gate", True)
    assert run.result(timeout_s=40).success
    assert [line["name"] for line in journal.of("finish")] == [f"s{number}" for number in range(MANY)]


def test_without_faults_no_check_fails_and_an_unserved_queue_is_named(town: Town) -> None:
    town.wait_for("sweep", "ok")
    told = town.wait_for("Redis", "ok")  # a machine that stalls makes one answer slow

    assert (told.exit_status, told.status, told.errors) == (0, "degraded", "")
    assert told.of("queue agents") == (
        "degraded",
        "no worker serves queue 'agents'; nothing waiting start one with `submit worker agents`",
    )
    assert {name: status for name, (status, _) in told.checks.items() if name != "queue agents"} == dict.fromkeys(
        ("Redis", "disk", "memory", "workers", "sweep", "queue coordinator", "queue tools", "runs"), "ok"
    )


@pytest.mark.slow("a server of its own is full, and then is not")
def test_a_full_disk_makes_runs_wait_and_loses_nothing(town: Town, client: Client, journal: Journal) -> None:
    run = begin(client, journal)

    with town.full_disk():
        told = town.wait_for("disk", "failing")
        town.wait(
            lambda: "cannot write to its disk" in town.log("tools") + town.log("coordinator"), "the sentence in a log"
        )

    assert (told.exit_status, told.of("disk")[1]) == (
        1,
        "the AOF cannot be written, so writes are refused and runs wait free space on the disk that Redis writes to",
    )
    assert "but refuses writes: Redis cannot write to its disk" in told.of("Redis")[1]
    check_ends_well(run, journal)
    town.wait_for("disk", "ok")
    town.wait_for("Redis", "ok")  # a busy machine answers slowly for a moment, which is degraded


def test_a_full_redis_makes_runs_wait_and_loses_nothing(town: Town, client: Client, journal: Journal) -> None:
    run = begin(client, journal)

    with connect(town.url) as redis:
        redis.config_set("maxmemory", 1_000_000)
        try:
            told = town.wait_for("Redis", "failing")
        finally:
            redis.config_set("maxmemory", 0)

    assert (told.exit_status, told.of("memory")[0]) == (1, "failing")
    assert "Redis is full (maxmemory): raise its maxmemory" in told.of("Redis")[1]
    check_ends_well(run, journal)


def test_a_worker_whose_first_word_redis_refuses_is_one_of_the_fleet_afterwards(town: Town) -> None:
    with connect(town.url) as redis:
        redis.acl_setuser(
            "default", enabled=True, nopass=True, commands=["-hset"]
        )  # as where Redis is full for a moment
        try:
            town.begin_worker("tools", name="late")
            town.wait(lambda: "redis_unavailable" in town.log("late"), "a worker that is not heard of")
        finally:
            redis.acl_setuser("default", enabled=True, nopass=True, commands=["+hset"])

    town.wait_for_worker("late")
    town.end("late")


@pytest.mark.parametrize("queue", ["tools", "coordinator"])
def test_a_worker_that_cannot_begin_exits_with_status_1(town: Town, queue: str) -> None:
    code = (
        "import sys; from unittest.mock import Mock\n"
        "from cantata_workers.process import service; from cantata_workers.__main__ import main\n"
        "service.Sweeper = Mock(side_effect=ValueError('no sweeper'))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    half = town.start("half", [sys.executable, "-c", code, queue, "--name", "half"], PYTHONPATH=str(TOP))

    assert half.wait(60) == 1
    assert "worker_not_ready" in town.log("half")


@pytest.mark.slow("a server hangs for some seconds")
def test_a_redis_that_hangs_is_told_within_seconds_and_runs_go_on_after_it(
    town: Town, client: Client, journal: Journal
) -> None:
    run = begin(client, journal)

    with town.frozen("redis"):
        told = town.status()

    assert told.exit_status == 3
    assert list(told.checks) == ["Redis"]
    assert re.search(r"gave no answer within [4-9] s", told.of("Redis")[1])
    assert re.search(r"gave no answer within [4-9] s", told.errors)
    assert told.seconds < 20
    check_ends_well(run, journal)


def test_a_gateway_that_is_frozen_or_killed_keeps_no_run(town: Town, client: Client, journal: Journal) -> None:
    address = town.start_gateway()
    assert (
        town.wait_for("gateway", "degraded", "--gateway", address)
        .of("gateway")[1]
        .endswith("no worker serves queue 'agents': start one with `submit worker agents`")
    )

    run = begin(client, journal, seconds=0.05)
    with town.frozen("gateway"):
        check_ends_well(run, journal)
        told = town.status("--gateway", address)
    town.end("gateway")
    gone = town.status("--gateway", address)

    assert told.of("gateway")[0] == "failing"
    assert "does not answer within 3 s; runs continue without it" in told.of("gateway")[1]
    assert gone.exit_status == 1
    assert f"{address} cannot be reached" in gone.of("gateway")[1]


def test_steps_for_a_queue_that_nobody_serves_are_told_with_what_to_do(
    town: Town, client: Client, journal: Journal
) -> None:
    nodes = [tool("one", "paint", journal=str(journal.path), mark="one", seconds=0.0)]
    run = client.submit_chain({"nodes": nodes, "entry_node": "one"})

    told = town.wait_for("queue gpu", "failing")
    run.cancel()

    assert told.exit_status == 1
    assert told.of("queue gpu")[1].startswith("no worker serves queue 'gpu'; 1 waiting")
    assert told.of("queue gpu")[1].endswith("start one with `submit worker gpu`")


@pytest.mark.slow("its worker starts from nothing")
def test_an_older_worker_among_newer_ones_is_named(town: Town) -> None:
    town.start_worker("tools", module="tests.faults.old_worker", name="old")

    told = town.wait_for("workers", "degraded", text=": old@")
    town.end("old")

    assert told.exit_status == 0
    assert "3, of version 0.0.1, " in told.of("workers")[1]
    assert "older than " in told.of("workers")[1]
    assert ": old@" in told.of("workers")[1]


@pytest.mark.thorough("two workers start; that an older one is named is the test above")
@pytest.mark.slow("workers are told apart by what they say each second")
def test_two_workers_of_one_name_are_told_apart_and_named(town: Town) -> None:
    command = [sys.executable, "-P", "-m", "cantata_workers", "tools", "--name", "tools", "--concurrency", "1"]
    town.start("duplicate", command, PYTHONPATH=str(TOP))

    told = town.wait_for("workers", "degraded", text="same name")
    town.wait(lambda: all("name_taken" in town.log(name) for name in ("tools", "duplicate")), "the warning of both")
    town.end("duplicate")

    assert "2, of version " in told.of("workers")[1]
    assert "same name, so counted as one: tools@" in told.of("workers")[1]
    assert told.of("workers")[1].endswith("start one of them with another --name")
    assert [town.log(name).count("name_taken") for name in ("tools", "duplicate")] == [1, 1]
    assert town.wait_for("workers", "ok").exit_status == 0


def test_a_redis_without_workers_is_failing(town: Town) -> None:
    told = town.status(url=f"{town.url}?db=1")

    assert told.exit_status == 1
    assert told.of("workers") == (
        "failing",
        "no worker is running, so runs wait start workers with `submit worker`",
    )
    assert told.of("sweep")[0] == "failing"
