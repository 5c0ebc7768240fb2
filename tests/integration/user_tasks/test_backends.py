"""Applications whose results are elsewhere, or nowhere: polled results, and ends that tasks report by a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from cantata.client.client import Client
from tests.integration.user_tasks.conftest import PATIENCE_S, Shop, ask, beside, submit, tool, url_of
from tests.integration.user_tasks.test_faults import dispatched, pid_of, types
from tests.waiting import freeze, until


@pytest.fixture(scope="module", params=["files", "nowhere", "rpc"])
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, valkey: Redis
) -> Iterator[tuple[Client, Shop]]:
    """A project with results in files, without results, or with results for their callers alone; and a client with a stack beside it."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "results").mkdir()
    database, results = {"files": (7, f"file://{folder}/results"), "nowhere": (8, ""), "rpc": (13, "rpc://")}[
        request.param
    ]
    shop = Shop(folder, url_of(valkey, database), results)
    try:
        shop.start_worker()
        with beside(shop, folder / "stack") as client:
            yield client, shop
    finally:
        shop.close()


def test_a_row_of_tasks(other: tuple[Client, Shop]) -> None:
    row = [tool("a", "add", a=1, next_node="b"), tool("b", "add", input_map={"a": "a"}, next_node="c")]

    assert ask(other[0], *row, tool("c", "quiet", input_map={"a": "b"})).outputs == {"a": 2, "b": 3, "c": 4}


def test_a_task_that_takes_a_while(other: tuple[Client, Shop]) -> None:
    assert ask(other[0], tool("a", "slow", mark="while", seconds=1.0, value={"x": [1]})).final_output == {"x": [1]}


def test_a_task_that_fails(other: tuple[Client, Shop]) -> None:
    client, shop = other

    result = ask(client, tool("a", "fail", message="no"))

    assert result.error
    told = (
        "ValueError: no" if keeps_results(shop) else "an exception: see the log of its worker: without a result backend"
    )
    assert told in result.error.message


@pytest.mark.parametrize(("name", "given", "output"), [("shy", {"times": 2}, 2), ("deputise", {"a": 5}, 15)])
def test_a_task_that_retries_or_replaces_itself(
    other: tuple[Client, Shop], name: str, given: dict[str, int], output: int
) -> None:
    assert ask(other[0], tool("a", name, **given)).final_output == output


def test_no_result_stays_in_the_broker(other: tuple[Client, Shop], valkey: Redis) -> None:
    client, shop = other
    run = submit(client, tool("a", "slow", mark="kept", seconds=0.1))
    task_id = dispatched(run)["task_id"]
    assert run.result(PATIENCE_S).success

    path, database = shop.environment["SHOP_BROKER"].removeprefix("redis+socket://").split("?virtual_host=")
    with Redis(unix_socket_path=path, db=int(database), decode_responses=True) as broker:
        for queue in broker.scan_iter(_type="list"):
            assert task_id not in str(broker.lrange(queue, 0, -1)), queue


@pytest.mark.parametrize(
    "args", [[], [1], [1, "run", "step", "x"], [1, None, {}, 2], [1, "no-such-run", "a", 1]], ids=str
)
def test_a_reply_that_nobody_can_read_keeps_no_other_waiting(other: tuple[Client, Shop], args: list[object]) -> None:
    client, shop = other
    shop.app.send_task("cantata.task_succeeded", args, exchange="cantata.replies", routing_key="cantata.replies")

    assert ask(client, tool("a", "quiet", a=1)).final_output == 2


@pytest.mark.slow("a message is lost, and a time limit must pass")
def test_a_task_whose_end_nobody_hears_of_is_done_again(other: tuple[Client, Shop], tmp_path: Path) -> None:
    client, shop = other
    run = submit(client, tool("a", "hurried", mark="unheard", file=str(tmp_path / "go")))
    task_id = dispatched(run)["task_id"]
    until(lambda: shop.lines("start", "unheard"), "the task")
    freeze(pid := pid_of(client, "tasks"))
    (tmp_path / "go").touch()
    until(lambda: not _is_active(shop, task_id), "its end")
    if keeps_results(shop):
        shop.app.AsyncResult(task_id).forget()
    os.kill(pid, signal.SIGKILL)  # with the message by which the task reported its end, if there is one

    assert run.result(PATIENCE_S).final_output == "unheard"
    assert len(shop.lines("finish", "unheard")) == 2
    assert types(run, "retry") == ["retry"]


def keeps_results(shop: Shop) -> bool:
    """Whether others than the caller of a task can read its result."""
    return shop.environment["SHOP_BACKEND"].startswith("file:")


def _is_active(shop: Shop, task_id: str) -> bool:
    """Whether their worker is at a task."""
    return task_id in str(shop.app.control.inspect(timeout=1).active() or task_id)


LOST_CONNECTION = """
from cantata.engine.dispatch.user_app import close_old_connections

close_old_connections()  # without Django
import django.db  # keeps no connection (CONN_MAX_AGE)
close_old_connections()  # without settings
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "results"}})

def is_lost():
    try:
        django.db.connection.cursor().execute("SELECT 1")
    except django.db.Error:
        return True
    return False

assert not is_lost()
django.db.connection.connection.close()  # as a database server that is restarted does
assert is_lost() and is_lost()
close_old_connections()
assert not is_lost()
"""


def test_a_lost_connection_to_the_database_of_django_is_replaced(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    ended = subprocess.run(
        [sys.executable, "-c", LOST_CONNECTION],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
