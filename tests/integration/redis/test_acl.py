"""The user of deploy/redis/users.acl, through TLS with certificates on both sides, may do all that Cantata does, and nothing besides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from redis.exceptions import NoPermissionError

import cantata
from cantata.engine.fleet.sizes import Sizes
from cantata.errors import UnavailableError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import check, connect
from cantata.testing import ScriptedModels
from tests.integration.redis.fleets import Door, Fleet, serving, use_everything
from tests.integration.redis.servers import PASSWORD, Server, running, until
from tests.integration.redis.tls import Authority, tls_before
from tests.integration.state.test_listing import accept

USERS = Path(__file__).parents[3] / "deploy" / "redis" / "users.acl"
LUA = Path(cantata.__file__).parent
ADMIN = "user admin on >admin ~* &* +@all\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis with the users of the example, and one for the test."""
    folder = tmp_path_factory.mktemp("server")
    file = folder / "users.acl"
    file.write_text(USERS.read_text() + ADMIN)
    server = Server(folder, {"aclfile": str(file)}, user="admin", password="admin")
    with running(server):
        yield server


@pytest.fixture(scope="module")
def url(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Redis as the user of the example, behind TLS that asks for clients' certificates."""
    authority = Authority(tmp_path_factory.mktemp("authority"), "authority")
    certificate, key = authority.issue("client")
    with tls_before(server.port, authority.issue("localhost"), clients_of=authority) as port:
        query = f"ssl_ca_certs={authority.file}&ssl_certfile={certificate}&ssl_keyfile={key}"
        yield f"rediss://cantata:{PASSWORD}@localhost:{port}/0?{query}"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, url: str, models: ScriptedModels) -> Iterator[Fleet]:
    """A fleet of this user."""
    with serving(tmp_path_factory.mktemp("fleet"), url) as fleet:
        yield fleet


@pytest.mark.slow("everything that touches Redis, on a fleet of its own")
def test_all_is_done_as_the_user_of_the_example_and_nothing_is_refused(workers: Fleet, server: Server) -> None:
    use_everything(workers, "acl")
    run_id = workers.client.runs(most=1)[0].run_id
    with ExitStack() as stack:
        gateway, flower = (stack.enter_context(Door(workers, name)) for name in ("gateway", "flower"))
        said = workers.submit("status")
        assert said.returncode == 0, said.stderr
        with httpx.stream("GET", f"{gateway}/runs/{run_id}/events", timeout=40) as events:
            assert "closed" in events.read().decode()
        assert httpx.get(f"{gateway}/ready", timeout=40).status_code == 200
        assert "\ncantata_redis_memory_own_estimate_bytes " in httpx.get(f"{gateway}/metrics", timeout=40).text
        until(lambda: "minds@" in httpx.get(f"{flower}/workers", timeout=40).text, "the workers in Flower")
        assert httpx.get(f"{flower}/runs/", timeout=40).status_code == 200

    assert [(entry["object"], entry["reason"]) for entry in server.redis.acl_log()] == []


def test_workers_say_that_a_password_is_refused_and_go_on_when_it_is_taken_again(
    workers: Fleet, server: Server
) -> None:
    rows = [
        workers.chain(*[workers.mark(f"secret{row}{step}", 0.2, **follow(row, step)) for step in range(4)])
        for row in range(2)
    ]
    until(lambda: "secret01" in workers.marks(), "steps under way")
    before = len(workers.logs())

    server.redis.acl_setuser("cantata", enabled=True, reset_passwords=True, passwords=["+another"])
    server.say("CLIENT KILL", "USER", "cantata")
    until(lambda: told(workers, before), "the sentence in the logs")
    server.redis.acl_setuser("cantata", enabled=True, reset_passwords=True, passwords=["+change-this-password"])

    assert [row.result(60).success for row in rows] == [True] * 2
    assert workers.tracebacks() == []
    server.redis.acl_log_reset()


def follow(row: int, step: int) -> dict[str, str]:
    """The node after one of a row of four."""
    return {"next_node": f"secret{row}{step + 1}"} if step < 3 else {}


def told(workers: Fleet, before: int) -> list[str]:
    """The lines since then that say what is wrong."""
    sentence = "Redis refuses the user or the password; set them in REDIS_URL"
    return [line for line in workers.logs()[before:].splitlines() if sentence in line]


def test_a_client_without_a_certificate_is_told_to_name_one(url: str) -> None:
    without = url.partition("&")[0]
    with connect(without) as redis, pytest.raises(UnavailableError, match=r"with \?ssl_certfile= and &ssl_keyfile="):
        check(redis, url=without)


@pytest.mark.parametrize(
    "words",
    [
        "FLUSHALL",
        "KEYS *",
        "CONFIG SET appendonly no",
        "SHUTDOWN",
        "GET other",
        "SUBSCRIBE secrets",
        "ACL LIST",
        "SCAN 0",
    ],
)
def test_what_cantata_does_not_need_is_refused(url: str, words: str) -> None:
    with connect(url) as redis, pytest.raises(NoPermissionError):
        redis.execute_command(*words.split())


ONLY_IN_TESTS = "skip.lua"  # no process but a test's calls it, and none of those is this user


def test_the_example_permits_each_command_of_our_scripts() -> None:
    texts = [
        file.read_text().replace("'MEMORY', 'USAGE'", "'MEMORY|USAGE'")
        for file in LUA.rglob("*.lua")
        if file.name != ONLY_IN_TESTS
    ]
    called = {name.lower() for text in texts for name in re.findall(r"redis\.p?call\('([A-Z|]+)'", text)}
    permitted = set(re.findall(r"\+([a-z|]+)", USERS.read_text()))

    assert called <= permitted


def test_without_the_right_to_measure_keys_there_is_no_estimate_and_nothing_else_is_missing(
    url: str, server: Server
) -> None:
    assert server.redis.acl_setuser("cantata", enabled=True, commands=["-memory|usage"])
    with connect(url) as redis:
        accept(Ledger(redis), "not-measured")
        assert Sizes().estimate(redis) is None
    server.redis.acl_setuser("cantata", enabled=True, commands=["+memory|usage"])
    server.redis.acl_log_reset()
