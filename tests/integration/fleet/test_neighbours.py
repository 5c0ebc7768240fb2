"""Other applications in the same Redis: who does whose tasks, and what becomes of messages that are nobody's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest

from cantata.client.client import EmbeddedClient
from cantata.engine.dispatch.celery_app import send
from cantata.engine.fleet import dead_letters
from cantata.engine.fleet.load import measure
from cantata.flows.canvas import MessageHead
from cantata.ledger.redis.keys import key_of
from cantata.operation.health.gather import read_fleet
from tests.integration.fleet import neighbour_app
from tests.integration.fleet.conftest import tool
from tests.waiting import until

TASKS, RUNS = 120, 30


def socket_of(client: EmbeddedClient) -> str:
    return unquote(urlsplit(client.redis_url).path)


@pytest.fixture(scope="module")
def shop(client: EmbeddedClient) -> Iterator[Any]:
    """The other application, with a worker of its own for queues that are called as ours."""
    socket = socket_of(client)
    app = neighbour_app.shop(socket)
    with subprocess.Popen([sys.executable, "-P", str(Path(neighbour_app.__file__)), socket]) as worker:
        try:
            yield app
        finally:
            worker.terminate()
    app.close()


@pytest.fixture
def letters(client: EmbeddedClient) -> Iterator[str]:
    """The key of dead letters, which are gone after the test."""
    key = key_of(client.redis, dead_letters.LETTERS_KEY)
    client.redis.delete(key)
    yield key
    client.redis.delete(key)


def test_both_applications_on_one_database_do_all_their_tasks_and_only_theirs(
    client: EmbeddedClient, shop: Any, letters: str
) -> None:
    row = [tool("a", "add", a=1, b=2, next_node="b"), tool("b", "echo", value="x")]
    runs = []
    for number in range(TASKS):
        shop.send_task("shop.sell", (number,), queue=neighbour_app.QUEUES[number % 4])
        if number % (TASKS // RUNS) == 0:
            runs.append(client.submit_chain({"nodes": row, "entry_node": "a"}))

    results = [run.result(60) for run in runs]
    until(lambda: client.redis.llen(neighbour_app.DONE) >= TASKS, "the other application's tasks", 60)

    assert {result.status for result in results} == {"succeeded"}
    assert sorted(map(int, cast("list[str]", client.redis.lrange(neighbour_app.DONE, 0, -1)))) == list(range(TASKS)), (
        "each once"
    )
    assert not client.redis.exists(letters), "neither got a message of the other"
    client.redis.delete(neighbour_app.DONE)


def test_remote_control_reaches_ones_own_workers_only(client: EmbeddedClient, shop: Any) -> None:
    theirs = until(
        lambda: {name for reply in shop.control.ping(timeout=2) or () for name in reply}, "the other's worker"
    )
    ours = {name for reply in client.app.control.ping(timeout=2) or () for name in reply}

    assert theirs == {"shop@here"}
    assert ours
    assert not ours & theirs


@pytest.mark.parametrize("name", ["whose_app", "whose_app_async"])
def test_code_of_users_in_our_workers_never_gets_our_application(client: EmbeddedClient, name: str) -> None:
    result = client.submit_chain({"nodes": [tool("a", name)], "entry_node": "a"}).result(40)

    assert result.final_output == "celery.app.base", "by ours, it would publish its tasks to our queues"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"name": "shop.sell"}, "no task is called 'shop.sell'"),
        ({"name": "shop.sell", "serializer": "pickle"}, "no task is called 'shop.sell'"),
    ],
)
def test_a_task_that_is_no_step_is_kept_and_told(
    client: EmbeddedClient, shop: Any, letters: str, message: dict[str, Any], reason: str
) -> None:
    shop.send_task(message["name"], ({"for": "you"},), queue="cantata.tools", serializer=message.get("serializer"))

    (letter,) = until(lambda: dead_letters.letters(client.redis), "the dead letter")
    assert (letter["queue"], letter["reason"]) == ("tools", reason)
    assert read_fleet(client.redis_url).load.dead_letters == 1
    assert client.redis.ttl(letters) > 0


def test_a_step_of_a_newer_version_is_left_to_the_sweep_however_it_was_sent(
    client: EmbeddedClient, shop: Any, letters: str
) -> None:
    step = MessageHead(client.app, "run").signature("newer.kind", "tools", ["a"])

    send(client.app, [step], first=True)
    send(client.app, [step])
    shop.send_task("shop.sell", queue="cantata.tools")

    (letter,) = until(lambda: dead_letters.letters(client.redis), "the dead letter")
    assert letter["reason"] == "no task is called 'shop.sell'"


def message(**fields: object) -> bytes:
    """A message as kombu writes it, but for some fields."""
    properties = {
        "delivery_tag": "1",
        "delivery_info": {"exchange": "", "routing_key": "cantata.tools"},
        "body_encoding": "base64",
    }
    whole = {
        "body": "W10=",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": properties,
    }
    return json.dumps(
        whole | fields | {"properties": properties | cast("dict[str, object]", fields.get("properties", {}))}
    ).encode()


NO_MESSAGES = [
    b"not JSON", b"[1]", b'{"body": "x"}', b"\xff\xfe\x00", b'{"properties": {"delivery_tag": "1"}}', b"[" * 100_000,
    b'{"__type__": "bytes", "__value__": 5}', message(properties={"body_encoding": "other"}), message(body="W"), message(headers=[1]),
    message(properties={"delivery_tag": ["1"]}), message(headers={"task": ["shop.sell"]}), message(headers={"task": "tool.call"}),
    message(**{"content-type": ["json"]}), message(**{"content-encoding": "other"}),
]  # fmt: skip


@pytest.mark.parametrize("raw", NO_MESSAGES, ids=range(len(NO_MESSAGES)))
def test_what_is_no_message_at_all_is_kept_and_ends_no_worker(client: EmbeddedClient, letters: str, raw: bytes) -> None:
    before = {(worker.name, worker.pid) for worker in measure(client.redis).workers}

    client.redis.lpush("cantata.tools", raw)

    (letter,) = until(lambda: dead_letters.letters(client.redis), "the dead letter")
    assert letter["queue"] == "tools"
    assert (
        client.submit_chain({"nodes": [tool("a", "add", a=1, b=2)], "entry_node": "a"}).result(40).status == "succeeded"
    )
    assert {(worker.name, worker.pid) for worker in measure(client.redis).workers} == before


def test_dead_letters_are_bounded(client: EmbeddedClient, letters: str) -> None:
    client.redis.rpush(letters, *["{}"] * dead_letters.MAX_LETTERS)

    dead_letters.add(client.redis, "large", queue="tools", headers={}, content_type="text/plain", body="x" * 200_000)

    assert client.redis.llen(letters) == dead_letters.MAX_LETTERS
    newest = dead_letters.letters(client.redis, most=1)[0]
    assert (newest["bytes"], len(str(newest["body"]))) == (200_000, dead_letters.MAX_BYTES)
