"""A Redis that refuses writes or loads its data: status, readiness and metrics say that, and nothing of workers that they cannot know."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from cantata import Client
from cantata.client import fleet
from cantata.engine.fleet import load
from cantata.flows.definitions import Definitions
from cantata.operation.health import evaluate, gather
from cantata.surfaces.gateway.metrics import FleetMonitor
from tests.integration.redis.servers import Server, running, until

OF_WORKERS = ("cantata_queue_workers", "cantata_queue_slots", "cantata_sweep_age_seconds", "cantata_workers_lost")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis of its own, with no worker."""
    server = Server(tmp_path, {"enable-debug-command": "yes"})
    with running(server):
        yield server


def refuse(server: Server, cause: str) -> None:
    """Have it refuse writes."""
    if cause == "memory":
        server.say("CONFIG", "SET", "maxmemory", "1")
        return
    size = sum(file.stat().st_size for file in server.folder.glob("appendonlydir/*.incr.aof"))
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def accept(server: Server) -> None:
    """Have it accept writes again."""
    server.say("CONFIG", "SET", "maxmemory", "0")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_redis_that_is_nearly_full_and_takes_some_writes_refuses_writes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "REFUSED_S", 1.0)
    with Client(f"redis://{server.place}/0", config=Definitions()) as client:
        found = client.fleet
        assert found.load().write_error == ""

        refuse(server, "memory")
        with pytest.raises(RedisError):
            client.redis.set("x", 1)
        accept(server)

        assert load.write_error(client.redis) == "", "it takes the next write"
        assert found.load().write_error == found.load().write_error == fleet.REFUSED
        until(lambda: not found.load().write_error, "the end of the refusal")


@pytest.mark.parametrize(
    ("cause", "told"), [("memory", "Redis is full (maxmemory)"), ("disk", "Redis cannot write to its disk")]
)
def test_while_redis_refuses_writes_nothing_is_said_of_workers(server: Server, cause: str, told: str) -> None:
    url = f"redis://{server.place}/0"
    with Client(url, config=Definitions()) as client:
        load.record_sweep(client.redis)
        refuse(server, cause)
        until(lambda: load.write_error(client.redis) or write(server), "the refusal")

        report = evaluate(gather(url, version="1.0.0"))
        page = FleetMonitor(client).page("", "text/plain").body.decode()

        failing = {check.name for check in report.checks if check.status == "failing"}
        assert failing <= {"Redis", "disk", "memory"}
        assert [check.message for check in report.checks if check.name == "workers"] == [
            "unknown while Redis refuses writes: workers cannot announce themselves"
        ]
        assert "submit worker" not in " ".join(check.action for check in report.checks)
        assert [fault[: len(told)] for fault in client.fleet.faults()] == [told]
        assert "\ncantata_redis_up 1.0\n" in page
        assert "\ncantata_redis_writable 0.0\n" in page
        assert not [name for name in OF_WORKERS if f"\n{name}" in page]
        assert client.runs() == [], "what is stored can be read"

        accept(server)
        until(lambda: not load.write_error(client.redis), "the end of the refusal")
        page = FleetMonitor(client).page("", "text/plain").body.decode()
        assert "\ncantata_redis_writable 1.0\n" in page
        assert f'\n{OF_WORKERS[0]}{{queue="tools"}} 0.0\n' in page
        (workers,) = (check for check in evaluate(gather(url, version="1.0.0")).checks if check.name == "workers")
        assert workers.message == "no worker is running, so runs wait"


def write(server: Server) -> bool:
    """Have it write to its disk."""
    server.say("SET", "some", "x" * 1000)
    return False


def test_a_redis_that_loads_its_data_is_waited_for(server: Server) -> None:
    server.say("DEBUG", "POPULATE", "20000", "key", "10")
    server.say("BGREWRITEAOF")
    until(lambda: server.redis.info("persistence")["aof_base_size"] > 100_000, "the file")
    server.kill()
    server.add("key-load-delay", "1000")
    server.add("loading-process-events-interval-bytes", "1024")
    server.start()
    until(lambda: is_loading(server), "the load")

    (check,) = evaluate(gather(f"redis://{server.place}/0", version="1.0.0")).checks

    assert check.message.startswith(f"Redis at redis://{server.place}/0 is loading its data; wait (")
    assert "% loaded, about " in check.message


def is_loading(server: Server) -> bool:
    """Whether it has begun to load."""
    info = server.redis.info("persistence")
    return bool(info["loading"]) and int(info["loading_loaded_bytes"]) > 0
