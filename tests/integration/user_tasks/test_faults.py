"""What becomes of steps whose tasks, workers, results or messages are lost, late or cancelled: no finished task is done again."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.ledger.redis.keys import run_key
from tests.integration.user_tasks.conftest import HEARTBEAT_S, HURRIED_S, PATIENCE_S, Shop, submit, tool
from tests.waiting import freeze, until


def pid_of(client: Any, name: str) -> int:
    """A process of the stack, alive."""
    return int(until(lambda: next((p.pid for p in client.stack.processes() if p.name == name and p.alive), None), name))


def kill_tasks_worker(client: Any) -> None:
    """Kill our worker that waits for tasks; the stack starts another one."""
    pid = pid_of(client, "tasks")
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(client, "tasks") != pid, "another worker")


def types(run: ChainRun, *wanted: str) -> list[str]:
    """The events of some types of step `a`, in order."""
    return [event.type for event in run.log(timeout_s=0.0) if event.step == "a" and event.type in wanted]


def heartbeats(client: Client, run: ChainRun) -> bool:
    """Whether a heartbeat of the step's first attempt is recorded."""
    redis = client.redis
    return bool(redis.exists(f"{run_key(redis, run.run_id)}:beat:1:a"))


def reason(run: ChainRun, type_: str) -> str:
    """The reason in the first event of a type of step `a`."""
    return next(event.explanation for event in run.log(timeout_s=0.0) if event.step == "a" and event.type == type_)


def dispatched(run: ChainRun) -> dict[str, Any]:
    """The event of the first task that the run sent."""
    return next(event for event in run.log(timeout_s=PATIENCE_S) if event.type == "dispatched").model_dump()


# Heartbeats


@pytest.mark.slow("a task runs for longer than its heartbeats may be apart")
def test_a_task_that_says_that_it_is_alive_is_left_alone(client: Client, shop: Shop, tmp_path: Path) -> None:
    run = submit(client, tool("a", "beating", mark="alive", file=str(tmp_path / "go")))
    dispatched(run)
    until(lambda: shop.lines("start", "alive"), "the task")
    time.sleep(2.5 * HEARTBEAT_S)  # the promise is about time
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "alive"
    assert len(shop.lines("start", "alive")) == 1


@pytest.mark.slow("a worker is killed, and its heartbeats must be missed")
def test_a_killed_worker_is_missed_after_heartbeat_s_not_after_timeout_s(
    client: Client, shop: Shop, tmp_path: Path
) -> None:
    run = submit(client, tool("a", "beating", mark="killed", file=str(tmp_path / "go")))
    dispatched(run)
    until(lambda: shop.lines("start", "killed"), "the task")
    until(lambda: heartbeats(client, run), "its first heartbeat")

    shop.kill_worker()
    shop.start_worker()
    until(lambda: len(shop.lines("start", "killed")) == 2, "another attempt")  # of a task whose timeout_s is 600
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "killed"
    assert "cantata.heartbeat() last more than 3 s ago" in reason(run, "retry")


@pytest.mark.slow("heartbeats must be missed")
@pytest.mark.parametrize("kind", ["no number", "another type"])
def test_a_heartbeat_that_cannot_be_read_is_in_the_way_of_no_other_task(
    client: Client, shop: Shop, tmp_path: Path, kind: str
) -> None:
    spoilt = submit(client, tool("a", "beating", mark=f"spoilt {kind}", file=str(tmp_path / "go"), beats=False))
    until(lambda: heartbeats(client, spoilt), "its heartbeat")
    key = f"{run_key(client.redis, spoilt.run_id)}:beat:1:a"
    client.redis.delete(key)
    if kind == "no number":
        client.redis.set(key, "soon")
    else:
        client.redis.rpush(key, "1")
    other = submit(client, tool("a", "beating_once", mark=f"other {kind}", file=str(tmp_path / "go"), beats=False))

    until(lambda: (step := other.steps(["a"]).get("a")) and step.state == "waiting_signal", "the question")
    other.signal("a", "answered")
    (tmp_path / "go").touch()

    assert spoilt.result(PATIENCE_S).final_output == f"spoilt {kind}"
    client.redis.delete(key)


@pytest.mark.slow("heartbeats must be missed")
def test_a_silent_task_that_runs_at_most_once_is_left_to_a_person(client: Client, shop: Shop, tmp_path: Path) -> None:
    run = submit(client, tool("a", "beating_once", mark="silent", file=str(tmp_path / "go"), beats=False))
    until(lambda: shop.lines("start", "silent"), "the task")

    until(lambda: (step := run.steps(["a"]).get("a")) and step.state == "waiting_signal", "the question")
    assert run.signal("a", "asked the bank") == "taken"
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "asked the bank"
    assert len(shop.lines("start", "silent")) == 1


@pytest.mark.slow("a worker of ours is away for longer than heartbeats may be apart")
def test_heartbeats_that_wait_for_our_worker_are_not_missed(client: Client, shop: Shop, tmp_path: Path) -> None:
    run = submit(client, tool("a", "beating", mark="unheard", file=str(tmp_path / "go")))
    dispatched(run)
    until(lambda: heartbeats(client, run), "its first heartbeat")

    pid = pid_of(client, "tasks")
    freeze(pid)
    time.sleep(1.5 * HEARTBEAT_S)  # the promise is about time
    os.kill(pid, signal.SIGCONT)
    time.sleep(HEARTBEAT_S)  # as above: the sweep has had the task looked for by then
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "unheard"
    assert len(shop.lines("start", "unheard")) == 1


# Our own workers


@pytest.mark.slow("a worker is killed, and another must look for the result")
def test_the_result_of_a_task_is_found_though_the_worker_that_waited_for_it_was_killed(
    client: Client, shop: Shop, tmp_path: Path
) -> None:
    run = submit(
        client, tool("a", "held", mark="orphan", file=str(tmp_path / "go"), next_node="b"), tool("b", "add", a=1)
    )
    dispatched(run)
    until(lambda: shop.lines("start", "orphan"), "the task")

    kill_tasks_worker(client)
    (tmp_path / "go").touch()
    until(lambda: shop.lines("finish", "orphan"), "its end")

    assert run.result(PATIENCE_S).outputs == {"a": "orphan", "b": 2}
    assert len(shop.lines("start", "orphan")) == 1
    assert types(run, "started", "lost") == ["started"], "no other attempt"


@pytest.mark.slow("a worker is killed, and its lease must run out")
def test_a_task_that_ended_while_its_worker_died_before_it_was_recorded_as_sent_is_not_done_again(
    client: Client, shop: Shop, fault: Path
) -> None:
    fault.write_text("task-published:1:kill")
    run = submit(
        client, tool("a", "slow", mark="published", seconds=0.3, value="once")
    )  # it cannot end before the worker dies

    assert run.result(PATIENCE_S).final_output == "once"
    assert not fault.exists(), "the worker was killed"
    assert len(shop.lines("start", "published")) == 1
    assert types(run, "started", "lost") == ["started", "lost", "started"]


@pytest.mark.slow("a result is lost, and its time limit must pass")
def test_a_task_whose_result_is_lost_is_done_again_when_its_time_is_over(
    client: Client, shop: Shop, valkey: Redis, tmp_path: Path
) -> None:
    run = submit(client, tool("a", "hurried", mark="expired", file=str(tmp_path / "go")))
    task_id = dispatched(run)["task_id"]
    freeze(pid := pid_of(client, "tasks"))
    (tmp_path / "go").touch()
    until(lambda: shop.app.AsyncResult(task_id).ready(), "the result")
    shop.app.AsyncResult(task_id).forget()
    os.kill(pid, signal.SIGKILL)

    result = run.result(PATIENCE_S)

    assert (result.success, result.final_output) == (True, "expired"), result.error
    assert len(shop.lines("finish", "expired")) == 2
    assert types(run, "retry") == ["retry"]


@pytest.mark.slow("another worker must look for the result")
def test_a_result_that_cannot_be_read_fails_its_step_and_no_other(
    client: Client, shop: Shop, valkey: Redis, tmp_path: Path
) -> None:
    bad, good = (submit(client, tool("a", "held", mark=mark, file=str(tmp_path / mark))) for mark in ("bad", "good"))
    task_id = dispatched(bad)["task_id"]
    dispatched(good)
    until(lambda: shop.lines("start", "bad"), "the task")  # before that, its worker stores that it has started
    freeze(pid := pid_of(client, "tasks"))
    results = shop.app.backend.client  # type: ignore[attr-defined]  # of a Redis backend
    results.set(shop.app.backend.get_key_for_task(task_id), b"\x80 no JSON")  # type: ignore[attr-defined]  # as above
    (tmp_path / "good").touch()
    until(lambda: shop.lines("finish", "good"), "the other task")
    os.kill(pid, signal.SIGKILL)

    assert good.result(PATIENCE_S).final_output == "good"
    result = bad.result(PATIENCE_S)
    (tmp_path / "bad").touch()
    assert result.error
    assert "the result of task shop.tasks.held cannot be read" in result.error.message
    assert "our worker's application needs the result_serializer" in result.error.message


# Their workers


@pytest.mark.slow("a task is lost with its worker, and its time limit must pass")
def test_a_task_that_is_lost_with_its_worker_is_done_again_and_those_before_it_are_not(
    client: Client, shop: Shop, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    row = [
        tool("first", "slow", mark="before", seconds=0, next_node="a"),
        tool("a", "hurried", mark="lost", file=str(go), next_node="c"),
    ]
    run = submit(client, *row, tool("c", "add", a=1))
    until(lambda: shop.lines("start", "lost"), "the task")

    shop.kill_worker()
    go.touch()
    shop.start_worker()

    assert run.result(PATIENCE_S).outputs == {"first": None, "a": "lost", "c": 2}
    assert (len(shop.lines("start", "lost")), len(shop.lines("start", "before"))) == (2, 1)


def test_a_task_waits_for_a_worker_that_is_away(client: Client, shop: Shop) -> None:
    shop.kill_worker()
    run = submit(client, tool("a", "slow", mark="patient", seconds=0))
    dispatched(run)

    shop.start_worker()

    assert run.result(PATIENCE_S).success
    assert len(shop.lines("start", "patient")) == 1


def test_a_child_that_dies_with_its_task_has_it_done_again(client: Client, shop: Shop, tmp_path: Path) -> None:
    run = submit(client, tool("a", "held", mark="child", file=str(tmp_path / "go")))
    line = until(lambda: shop.lines("start", "child"), "the task")[0]
    os.kill(line["pid"], signal.SIGKILL)
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "child"
    assert len(shop.lines("start", "child")) == 2
    assert "WorkerLostError" in str([event.model_dump().get("error") for event in run.log()])


# Time limits


@pytest.mark.slow("their worker starts again")
def test_a_task_that_their_worker_gets_too_late_is_sent_again(client: Client, shop: Shop, tmp_path: Path) -> None:
    shop.kill_worker()
    run = submit(client, tool("a", "hurried", mark="stale", file=str(tmp_path / "go")))
    sent = dispatched(run)
    freeze(pid := pid_of(client, "tasks"))  # so that it is told by their worker that the task has expired
    until(lambda: time.time() > sent["at_ms"] / 1000 + HURRIED_S, "the end of its time")
    shop.start_worker()
    until(shop.app.AsyncResult(sent["task_id"]).ready, "the word of their worker")
    (tmp_path / "go").touch()
    os.kill(pid, signal.SIGCONT)

    result = run.result(PATIENCE_S)

    assert (result.success, result.final_output) == (True, "stale"), result.error
    assert len(shop.lines("start", "stale")) == 1


@pytest.mark.slow("a time limit must pass")
def test_a_task_that_runs_at_most_once_is_left_to_a_person_when_it_is_late(client: Client, shop: Shop) -> None:
    run = submit(client, tool("a", "once", mark="once", seconds=4.0))
    until(lambda: types(run, "uncertain"), "the end of its time")

    assert run.signal("a", "a person's word") == "taken"

    assert run.result(PATIENCE_S).final_output == "a person's word"
    assert len(shop.lines("start", "once")) == 1


def test_tasks_of_a_cancelled_run_are_revoked(client: Client, shop: Shop, tmp_path: Path) -> None:
    go = tmp_path / "go"
    blockers = [submit(client, tool("a", "held", mark=f"first {number}", file=str(go))) for number in range(2)]
    until(lambda: all(shop.lines("start", f"first {number}") for number in range(2)), "the blockers")
    run = submit(client, tool("a", "slow", mark="cancelled", seconds=0))
    task_id = dispatched(run)["task_id"]

    run.cancel()
    until(lambda: task_id in json.dumps(shop.app.control.inspect(timeout=1).revoked()), "the revocation")
    go.touch()

    for blocker in blockers:
        assert blocker.result(PATIENCE_S).success
    assert shop.app.AsyncResult(task_id).state in ("REVOKED", "PENDING")
    assert not shop.lines("start", "cancelled")
