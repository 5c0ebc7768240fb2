"""Settings of the user's tasks, and what they raise to tell Celery more than an error."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client
from tests.integration.user_tasks.conftest import HURRIED_S, PATIENCE_S, Shop, ask, submit, tool
from tests.integration.user_tasks.test_faults import dispatched, reason, types
from tests.waiting import until

LATE = f"has not ended within {HURRIED_S:g} s"


@pytest.mark.parametrize(("failures", "executions", "output"), [(2, 3, 2), (9, 3, None)], ids=["in time", "too often"])
def test_a_task_with_autoretry_for_is_one_attempt(
    client: Client, shop: Shop, failures: int, executions: int, output: int | None
) -> None:
    mark = f"unsteady {failures}"
    run = submit(client, tool("a", "unsteady", mark=mark, failures=failures))
    result = run.result(PATIENCE_S)

    assert result.final_output == output
    assert bool(result.error) is (output is None)
    assert result.error is None or "task shop.tasks.unsteady raised ConnectionError: no bank" in result.error.message
    assert [line["id"] for line in shop.lines("start", mark)] == executions * [dispatched(run)["task_id"]]
    assert types(run, "retry") == []


@pytest.mark.slow("a time limit must pass")
def test_a_task_that_a_rate_limit_holds_back_is_late_as_one_that_waits_in_its_queue(client: Client, shop: Shop) -> None:
    assert ask(client, tool("a", "seldom", mark="of this minute")).success
    run = submit(client, tool("a", "seldom", mark="of the next"))
    until(lambda: types(run, "retry"), "the end of its time")
    run.cancel()

    assert LATE in reason(run, "retry")
    assert not shop.lines("start", "of the next")


def test_timeout_s_is_in_the_place_of_a_tasks_own_expires(client: Client, shop: Shop) -> None:
    shop.kill_worker()
    run = submit(client, tool("a", "perishable", mark="perishable"))
    sent = dispatched(run)
    until(lambda: time.time() > sent["at_ms"] / 1000 + 0.1, "the end of its own time")

    shop.start_worker()

    assert run.result(PATIENCE_S).final_output == "perishable"
    assert types(run, "retry") == []


@pytest.mark.parametrize(("name", "error"), [("endless", "TimeLimitExceeded"), ("too_long", "SoftTimeLimitExceeded")])
def test_a_task_that_its_time_limit_ends_fails_its_step(client: Client, name: str, error: str) -> None:
    result = ask(client, tool("a", name))

    assert result.error
    assert f"task shop.tasks.{name} raised {error}" in result.error.message


def test_a_task_with_reject_on_worker_lost_is_delivered_again_when_its_child_dies(
    client: Client, shop: Shop, tmp_path: Path
) -> None:
    run = submit(client, tool("a", "kept", mark="kept", file=str(tmp_path / "go")))
    first = until(lambda: shop.lines("start", "kept"), "the task")[0]
    os.kill(first["pid"], signal.SIGKILL)
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "kept"
    assert [line["id"] for line in shop.lines("start", "kept")] == 2 * [first["id"]]
    assert types(run, "started", "retry") == ["started"]


@pytest.mark.slow("a time limit must pass")
def test_a_task_that_raises_ignore_is_late(client: Client, shop: Shop) -> None:
    run = submit(client, tool("a", "evasive", mark="to ignore", how="ignore"))
    until(lambda: types(run, "retry"), "the end of its time")
    run.cancel()

    assert LATE in reason(run, "retry")
    assert shop.lines("start", "to ignore")


def test_a_task_that_raises_reject_without_requeue_fails_its_step(client: Client, shop: Shop) -> None:
    result = ask(client, tool("a", "evasive", mark="to reject", how="reject"))

    assert result.error
    assert "task shop.tasks.evasive raised Reject: no" in result.error.message
    assert len(shop.lines("start", "to reject")) == 1


def test_a_task_that_stores_its_result_and_raises_ignore_has_ended(client: Client) -> None:
    assert ask(client, tool("a", "evasive", mark="to store", how="store")).final_output == "stored"


def test_a_task_that_raises_reject_with_requeue_is_delivered_again_as_the_same_attempt(
    client: Client, shop: Shop
) -> None:
    run = submit(client, tool("a", "evasive", mark="to requeue", how="requeue"))

    assert run.result(PATIENCE_S).final_output == "delivered again"
    assert len(shop.lines("start", "to requeue")) == 2
    assert types(run, "started", "retry") == ["started"]


# acks_late: Redis delivers an unacknowledged message again after its visibility timeout, an hour by default


@pytest.mark.slow("a worker is killed, and the time limit of its task must pass")
def test_a_late_task_of_a_killed_worker_is_done_again_after_timeout_s(
    client: Client, shop: Shop, tmp_path: Path
) -> None:
    run = submit(client, tool("a", "hurried_late", mark="an hour", file=str(tmp_path / "go")))
    until(lambda: shop.lines("start", "an hour"), "the task")
    shop.kill_worker()
    (tmp_path / "go").touch()
    shop.start_worker()

    assert run.result(PATIENCE_S).final_output == "an hour"
    assert len(shop.lines("start", "an hour")) == 2
    assert types(run, "retry") == ["retry"]


VISIBILITY = {"visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


@pytest.fixture(scope="module")
def impatient(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The project with one more worker, whose messages are delivered again after a second."""
    made = Shop(
        tmp_path_factory.mktemp("impatient"), shop.environment["SHOP_BROKER"], shop.environment["SHOP_BACKEND"],
        queues="late", SHOP_OPTIONS=json.dumps(VISIBILITY),
    )  # fmt: skip
    try:
        made.start_worker()
        yield made
    finally:
        made.close()


def test_a_task_with_acks_late_that_is_delivered_twice_counts_once(
    client: Client, impatient: Shop, tmp_path: Path
) -> None:
    run = submit(client, tool("a", "held_late", mark="twice", file=str(tmp_path / "go")))
    until(lambda: len(impatient.lines("start", "twice")) == 2, "the second delivery")
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "twice"
    assert len({line["id"] for line in impatient.lines("start", "twice")}) == 1
    assert types(run, "started", "retry", "done") == ["started", "done"]


def test_a_task_with_acks_late_is_delivered_again_when_its_worker_is_killed(
    client: Client, impatient: Shop, tmp_path: Path
) -> None:
    run = submit(client, tool("a", "held_late", mark="killed late", file=str(tmp_path / "go")))
    until(lambda: impatient.lines("start", "killed late"), "the task")
    impatient.kill_worker()
    (tmp_path / "go").touch()
    impatient.start_worker()

    assert run.result(PATIENCE_S).final_output == "killed late"
    assert len(impatient.lines("start", "killed late")) >= 2
    assert types(run, "started", "retry") == ["started"]
