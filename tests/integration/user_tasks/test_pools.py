"""Workers of the user's with each of Celery's pools: they execute steps, discard revoked tasks, and are killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client
from tests.faults.processes import family, is_alive
from tests.integration.user_tasks.conftest import HURRIED_S, PATIENCE_S, Shop, ask, queue_of, submit, tool
from tests.integration.user_tasks.test_faults import dispatched, reason, types
from tests.waiting import until

DISCARDS = {"prefork": True, "threads": False, "gevent": False, "eventlet": False}
"""Whether a worker discards a revoked task that it has fetched. One with `solo` hears of it between two tasks: at times too late."""


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> Iterator[Shop]:
    """The project with one more worker, whose pool is that one."""
    yield from with_pool(request.param, shop, tmp_path_factory.mktemp(request.param))


def with_pool(name: str, shop: Shop, folder: Path, python: Path | str = sys.executable) -> Iterator[Shop]:
    """The project with one more worker, whose pool is that one; its tasks come from the same broker, by a queue of its own."""
    broker, results = shop.environment["SHOP_BROKER"], shop.environment["SHOP_BACKEND"]
    made = Shop(folder, broker, results, pool=name, queues=queue_of(name), python=python)
    try:
        made.start_worker()
        yield made
    finally:
        made.close()


def test_a_row_of_tasks(client: Client, pool: Shop) -> None:
    name = f"add_in_{pool.pool}"
    row = [tool("a", name, a=1, mark="row", next_node="b"), tool("b", name, mark="row", input_map={"a": "a"})]

    assert ask(client, *row).outputs == {"a": 2, "b": 3}
    assert pool.worker
    assert {line["pid"] for line in pool.lines("start", "row")} <= set(family(pool.worker.pid))


def test_a_fetched_task_of_a_cancelled_run_is_discarded_with_prefork_alone(
    client: Client, shop: Shop, pool: Shop, tmp_path: Path
) -> None:
    go, name = tmp_path / "go", pool.pool
    marks = [f"before {number}" for number in range(pool.slots)]
    blockers = [submit(client, tool("a", f"held_in_{name}", mark=mark, file=str(go))) for mark in marks]
    until(lambda: all(pool.lines("start", mark) for mark in marks), "the blockers")
    run = submit(client, tool("a", f"add_in_{name}", a=1, mark="cancelled"))
    task_id = dispatched(run)["task_id"]

    run.cancel()
    until(lambda: task_id in str(shop.app.control.inspect(timeout=1).revoked()), "the revocation")
    go.touch()

    assert all(blocker.result(PATIENCE_S).success for blocker in blockers)
    assert ask(client, tool("a", f"add_in_{name}", a=1, mark="after")).success
    if pool.pool in DISCARDS:
        assert bool(pool.lines("start", "cancelled")) is not DISCARDS[pool.pool]


@pytest.mark.slow("a worker is killed, and the time limit of its tasks must pass")
def test_a_killed_worker_has_its_tasks_done_again_after_timeout_s_and_no_finished_one(
    client: Client, pool: Shop, tmp_path: Path
) -> None:
    go, name = tmp_path / "go", pool.pool
    marks = [f"killed {number}" for number in range(pool.slots)]
    runs = [
        submit(
            client,
            tool("first", f"add_in_{name}", a=1, mark=f"finished {mark}", next_node="a"),
            tool("a", f"held_in_{name}", mark=mark, file=str(go), next_node="last"),
            tool("last", f"add_in_{name}", input_map={"a": "first"}),
        )
        for mark in marks
    ]
    until(lambda: all(pool.lines("start", mark) for mark in marks), "the tasks")
    waiting = submit(client, tool("a", f"held_in_{name}", mark="waiting", file=str(go)))
    dispatched(waiting)

    assert pool.worker
    processes = family(pool.worker.pid)
    os.kill(pool.worker.pid, signal.SIGKILL)
    pool.worker.wait()
    until(lambda: not any(map(is_alive, processes)), "the end of its children")
    go.touch()
    pool.start_worker()

    for run, mark in zip(runs, marks, strict=True):
        assert run.result(PATIENCE_S).outputs == {"first": 2, "a": mark, "last": 3}
        assert [len(pool.lines("start", each)) for each in (f"finished {mark}", mark)] == [1, 2]
        assert types(run, "retry") == ["retry"]
        assert f"has not ended within {HURRIED_S:g} s" in reason(run, "retry")
    assert waiting.result(PATIENCE_S).final_output == "waiting"
    assert len(pool.lines("start", "waiting")) == 1
    if name != "solo":  # which fetches no other meanwhile, unless it is between two tasks
        assert types(waiting, "retry") == ["retry"]
