"""Tasks whose worker was killed, and which say nothing of themselves: found before their time limit, if that is certain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from cantata.client.client import Client
from tests.integration.user_tasks.conftest import PATIENCE_S, Shop, beside, submit, tool, url_of
from tests.integration.user_tasks.test_faults import dispatched, reason, types
from tests.waiting import until

ASKED_S = 15.0  # within which our worker has asked theirs for the tasks that they execute, as docs/your-celery.md says
OFTEN = ("--heartbeat-interval", "1")
FOUND_S = 90.0  # the sweep has a task looked for within half of its age, here


@pytest.fixture(scope="module", params=["results", "no results"])
def killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, valkey: Redis
) -> Iterator[tuple[Client, Shop]]:
    """A project of its own, with a stack beside it."""
    folder = tmp_path_factory.mktemp("killed")
    database = 9 if request.param == "results" else 11
    shop = Shop(folder, url_of(valkey, database), url_of(valkey, 10) if request.param == "results" else "")
    try:
        with beside(shop, folder / "stack") as client:
            yield client, shop
    finally:
        shop.close()


@pytest.mark.slow("heartbeats of workers must be missed")
def test_tasks_of_a_killed_worker_are_executed_again_if_they_are_lost_for_certain(
    killed: tuple[Client, Shop], tmp_path: Path
) -> None:
    client, shop = killed
    go = str(tmp_path / "go")
    busy = ("-c", "5", "-Q", "celery", "--prefetch-multiplier", "2", *OFTEN)
    prefork = shop.start_another("prefork@shop", *busy)
    shop.start_another("solo@shop", "-P", "solo", "-Q", "shop:other queue", *OFTEN)

    ending = shop.start_another("ending@shop", "-c", "1", "-Q", "ending", *OFTEN)

    held = [submit(client, tool("a", "long_held", mark=f"held {each}", file=go)) for each in range(3)]
    once = submit(client, tool("a", "long_once", mark="once", file=go))
    late = submit(client, tool("a", "long_held_late", mark="late", file=go))
    runs = [*held, once, late]
    until(
        lambda: all(shop.lines("start", mark) for mark in ("held 0", "held 1", "held 2", "once", "late")), "the tasks"
    )
    waiting = submit(client, tool("a", "long_held", mark="waiting", file=go))  # taken by the worker, and not begun
    blocks = submit(client, tool("a", "long_elsewhere", mark="solo", file=go))
    last = submit(client, tool("a", "long_ending", mark="last", file=go))
    until(lambda: shop.lines("start", "solo"), "the task that keeps a worker from answering")
    until(lambda: shop.lines("start", "last"), "the task of a worker that ends")
    dispatched(waiting)
    time.sleep(ASKED_S)  # the promise is about time

    ending.terminate()  # it waits for its last task, and sends no heartbeats meanwhile
    shop.kill_worker(prefork)
    shop.start_another("prefork@shop", *busy)  # as a supervisor does: the same name, another process

    until(lambda: all(len(shop.lines("start", f"held {each}")) == 2 for each in range(3)), "other attempts", FOUND_S)
    assert "its worker prefork@shop sends no heartbeats" in reason(held[0], "retry")
    others = ("once", "late", "waiting", "solo", "last")
    assert [len(shop.lines("start", mark)) for mark in others] == [1, 1, 0, 1, 1]
    assert [types(run, "retry", "lost", "uncertain") for run in (once, late, waiting, blocks, last)] == 5 * [[]]

    (tmp_path / "go").touch()
    assert [run.result(PATIENCE_S).final_output for run in held] == ["held 0", "held 1", "held 2"]
    assert [blocks.result(PATIENCE_S).final_output, last.result(PATIENCE_S).final_output] == ["solo", "last"]
    assert ending.wait(PATIENCE_S) == 0
    assert [len(shop.lines("start", mark)) for mark in others] == [1, 1, 0, 1, 1]
    for run in runs:
        run.cancel()
