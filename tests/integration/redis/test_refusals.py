"""Each way in which a Redis cannot be used is told in one clear sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest

from cantata.errors import UnavailableError
from cantata.ledger.redis.connection import check, connect
from tests.integration.redis.servers import HERE, Clustered, Sentinel, Server, free_port, running, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis with a password, and a user who may do little."""
    server = Server(tmp_path_factory.mktemp("server"), {"requirepass": "secret", "databases": "2"}, password="secret")
    with running(server):
        server.redis.acl_setuser("eve", enabled=True, passwords=["+x"], commands=["+client", "+hello", "+ping"])
        yield server


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Server]:
    """A Sentinel whose master is dead."""
    watch = f"sentinel monitor main {HERE} {free_port()} 1\nsentinel down-after-milliseconds main 100"
    sentinel = Sentinel(tmp_path_factory.mktemp("sentinel"), watch)
    with running(sentinel):
        until(lambda: sentinel.say("SENTINEL MASTER", "main")["is_sdown"], "a master that is down")
        yield sentinel


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A web server, which is no Redis."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer((HERE, 0), Quiet) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"{HERE}:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("login", "database", "said"),
    [
        ("", 0, "refuses the user or the password; set them in REDIS_URL"),
        (":wrong@", 0, "refuses the user or the password; set them in REDIS_URL"),
        ("bob:secret@", 0, "refuses the user or the password; set them in REDIS_URL"),
        (":secret@", 9, "has no database of this number; name another in REDIS_URL, or raise its setting 'databases'"),
        ("eve:x@", 0, "has no permissions to run the 'info' command); deploy/redis/users.acl lists them"),
    ],
)
def test_a_redis_that_refuses_a_client_is_told_why(server: Server, login: str, database: int, said: str) -> None:
    told = fault_of(f"redis://{login}{server.place}/{database}")

    assert said in told
    assert server.place in told
    assert "secret" not in told
    assert "wrong" not in told


def test_what_is_no_redis_is_told(web: str) -> None:
    assert f"the server at redis://{web}/0 is not a Redis (Protocol error" in fault_of(f"redis://{web}/0")


def test_a_cluster_and_a_single_redis_are_told_from_each_other(server: Server, clustered: Clustered) -> None:
    node = clustered.nodes[1].place

    assert f"Redis at redis://{node}/0 is a node of a Redis Cluster; name it with redis+cluster://" in fault_of(
        f"redis://{node}/0"
    )
    assert "is not a Redis Cluster; name it with redis:// in REDIS_URL" in fault_of(
        f"redis+cluster://:secret@{server.place}"
    )
    assert "refuses the user or the password" in fault_of(f"redis+cluster://{server.place}")


def test_sentinels_without_a_master_and_those_that_are_none_are_told(sentinel: Server, server: Server) -> None:
    away = f"{HERE}:{free_port()}"

    assert "has no master that its Sentinels report as up (No master found for 'main')" in fault_of(
        f"redis+sentinel://{sentinel.place}/main"
    )
    assert "(No master found for 'other')" in fault_of(f"redis+sentinel://{sentinel.place}/other")
    assert "has no master that its Sentinels report as up" in fault_of(f"redis+sentinel://{away}/main")
    assert "cannot be reached" in fault_of(f"redis+cluster://{away}")


def fault_of(url: str) -> str:
    """What is said of a Redis that cannot be used."""
    with pytest.raises(UnavailableError) as caught, connect(url) as redis:
        check(redis, url=url)
    said = str(caught.value)
    assert "\n" not in said
    return said
