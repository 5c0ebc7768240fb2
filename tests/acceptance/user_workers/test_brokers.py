"""Projects whose broker is RabbitMQ or SQS, or whose results are in a database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

from cantata.client.client import Client
from cantata.ledger.redis.connection import connect
from tests.acceptance.neighbours.brokers import RabbitMQ
from tests.acceptance.neighbours.our_workers import OurWorkers
from tests.acceptance.user_workers.servers import REGION, SQS
from tests.integration.redis.servers import Server, running
from tests.integration.user_tasks.conftest import HERE, PATIENCE_S, Shop, ask, beside, definitions, submit, tool, url_of
from tests.integration.user_tasks.test_faults import dispatched, heartbeats, types
from tests.waiting import until

pytestmark = [
    pytest.mark.thorough(
        "brokers and databases of others; Redis and results in files are held by integration/user_tasks"
    ),
    pytest.mark.slow("workers of theirs and of ours start"),
]


# RabbitMQ delivers the messages of a worker that is gone at once


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory, valkey: Redis) -> Iterator[tuple[Client, Shop]]:
    """A project with RabbitMQ as its broker, and a client with a stack beside it."""
    folder = tmp_path_factory.mktemp("rabbitmq")
    server = RabbitMQ(folder / "server")
    try:
        server.wait()
        shop = Shop(folder, server.url, url_of(valkey, 10), queues="celery,late")
        try:
            shop.start_worker()
            with beside(shop, folder / "stack") as client:
                yield client, shop
        finally:
            shop.close()
    finally:
        server.close()


def test_rabbitmq_delivers_a_task_with_acks_late_again_as_soon_as_its_worker_is_killed(
    rabbitmq: tuple[Client, Shop], tmp_path: Path
) -> None:
    client, shop = rabbitmq
    run = submit(client, tool("a", "held_late", mark="killed", file=str(tmp_path / "go")))
    until(lambda: shop.lines("start", "killed"), "the task")
    shop.kill_worker()
    (tmp_path / "go").touch()
    shop.start_worker()

    assert run.result(PATIENCE_S).final_output == "killed"
    assert len(shop.lines("start", "killed")) == 2
    assert types(run, "started", "retry") == ["started"]


def test_rabbitmq_delivers_a_task_that_waits_in_a_killed_worker_to_another(
    rabbitmq: tuple[Client, Shop], tmp_path: Path
) -> None:
    client, shop = rabbitmq
    blockers = [
        submit(client, tool("a", "hurried", mark=f"first {number}", file=str(tmp_path / "go"))) for number in range(2)
    ]
    until(lambda: all(shop.lines("start", f"first {number}") for number in range(2)), "the blockers")
    run = submit(client, tool("a", "slow", mark="fetched", seconds=0))
    task_id = dispatched(run)["task_id"]
    until(lambda: task_id in str(shop.app.control.inspect(timeout=1).reserved()), "the delivery")
    shop.kill_worker()
    (tmp_path / "go").touch()
    shop.start_worker()

    assert run.result(PATIENCE_S).success
    assert types(run, "started", "retry") == ["started"]
    assert all(blocker.result(PATIENCE_S).success and types(blocker, "retry") == ["retry"] for blocker in blockers)


# SQS has neither exchanges nor broadcasts


@pytest.fixture(scope="module", params=["results", "no results"])
def sqs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, valkey: Redis, python: Path
) -> Iterator[tuple[Client, Shop]]:
    """A project with SQS as its broker, and a client with a stack beside it, whose own messages go through a Redis."""
    folder = tmp_path_factory.mktemp("sqs")
    server = SQS(python, folder)
    options = {"region": REGION, "is_secure": False, "wait_time_seconds": 1, "polling_interval": 0.1}
    try:
        shop = Shop(
            folder, server.url, url_of(valkey, 11) if request.param == "results" else "",
            queues="celery", python=python, SHOP_OPTIONS=json.dumps(options),
        )  # fmt: skip
        try:
            shop.start_worker_soon()  # it hears of no ping
            with beside(shop, folder / "stack", broker_url=url_of(valkey, 12)) as client:
                yield client, shop
        finally:
            shop.close()
    finally:
        server.close()


@pytest.mark.whole
def test_a_row_of_tasks_by_sqs(sqs: tuple[Client, Shop]) -> None:
    client, shop = sqs
    row = [tool("a", "add", a=1, next_node="b"), tool("b", "quiet", input_map={"a": "a"}, next_node="c")]
    run = submit(client, *row, tool("c", "fail", message="no"))
    result = run.result(PATIENCE_S)

    assert {name: result.outputs[name] for name in "ab"} == {"a": 2, "b": 3}
    assert result.error
    assert (
        "ValueError: no" if shop.environment["SHOP_BACKEND"] else "see the log of its worker"
    ) in result.error.message
    assert [event.step for event in run.log(timeout_s=0.0) if event.type == "retry"] == []


@pytest.mark.whole
def test_a_heartbeat_arrives_by_sqs(sqs: tuple[Client, Shop], tmp_path: Path) -> None:
    run = submit(sqs[0], tool("a", "beating", mark="alive", file=str(tmp_path / "go")))
    until(lambda: heartbeats(sqs[0], run), "its heartbeat")
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "alive"


@pytest.mark.whole
def test_a_task_that_waits_in_sqs_is_executed_though_its_run_is_cancelled(
    sqs: tuple[Client, Shop], tmp_path: Path
) -> None:
    client, shop = sqs
    blockers = [
        submit(client, tool("a", "held", mark=f"first {number}", file=str(tmp_path / "go"))) for number in range(2)
    ]
    until(lambda: all(shop.lines("start", f"first {number}") for number in range(2)), "the blockers")
    run = submit(client, tool("a", "slow", mark="cancelled", seconds=0))
    dispatched(run)
    run.cancel()
    (tmp_path / "go").touch()

    until(lambda: shop.lines("finish", "cancelled"), "the task")
    assert all(blocker.result(PATIENCE_S).success for blocker in blockers)
    assert run.so_far().status == "cancelled"


# Results in a database, which our workers read


@pytest.fixture(scope="module")
def database(
    tmp_path_factory: pytest.TempPathFactory, valkey: Redis, python: Path
) -> Iterator[tuple[Client, Shop, OurWorkers]]:
    """A project with results in SQLite, by SQLAlchemy; our workers have it too."""
    folder = tmp_path_factory.mktemp("database")
    server = Server(folder)
    with running(server), ExitStack() as opened:
        url = f"redis://{server.place}/0"
        shop = Shop(folder, url, f"db+sqlite:///{folder}/results.sqlite", python=python)
        opened.callback(shop.close)
        shop.start_worker()
        connected = connect(url)
        opened.callback(connected.close)
        ours = OurWorkers(
            folder / "ours", connected, url, url, None,
            app="shop.celery:app", python=python, PYTHONPATH=str(HERE), **shop.environment,
        )  # fmt: skip
        opened.callback(ours.stop)
        ours.wait()
        yield opened.enter_context(Client(url, config=definitions())), shop, ours


@pytest.mark.whole
def test_results_are_read_from_a_database(database: tuple[Client, Shop, OurWorkers]) -> None:
    client, _, _ = database
    row = [tool("a", "add", a=1, next_node="b"), tool("b", "slow", mark="b", seconds=0.5, value={"x": [1]})]

    assert ask(client, *row).outputs == {"a": 2, "b": {"x": [1]}}
    failed = ask(client, tool("a", "fail", message="no"))
    assert failed.error
    assert "ValueError: no" in failed.error.message


@pytest.mark.whole
def test_a_result_in_a_database_is_found_though_our_worker_was_killed(
    database: tuple[Client, Shop, OurWorkers], tmp_path: Path
) -> None:
    client, shop, ours = database
    run = submit(client, tool("a", "held", mark="orphan", file=str(tmp_path / "go")))
    dispatched(run)
    until(lambda: shop.lines("start", "orphan"), "the task")

    ours.kill_tasks_worker()
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "orphan"
    assert len(shop.lines("start", "orphan")) == 1
    assert types(run, "started", "lost") == ["started"]
