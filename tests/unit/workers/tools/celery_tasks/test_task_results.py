"""Results of the user's tasks, in the forms in which backends keep them."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from cantata.errors import ConfigError, StepError
from cantata_workers.tools.celery_tasks import task_results
from cantata_workers.tools.celery_tasks.task_results import UNREADABLE, TaskResult, result_of

TRACEBACK = """Traceback (most recent call last):
  File "/shop/bank.py", line 3, in pay
    raise KeyError("k")
KeyError: 'k'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/shop/tasks.py", line 8, in pay
    raise Declined("card 7", 402)
shop.tasks.Declined: the bank declined card 7 (402)
ValueError: is no end of it
"""


@pytest.mark.parametrize("state", ["PENDING", "RECEIVED", "STARTED", "RETRY", "PROGRESS"])
def test_a_task_that_has_not_ended_has_no_result(state: str) -> None:
    assert result_of({"status": state, "result": {"percent": 50}}) is None


@pytest.mark.parametrize(
    ("meta", "result"),
    [
        ({"status": "SUCCESS", "result": {"a": 1}}, TaskResult("SUCCESS", {"a": 1})),
        (
            {
                "status": "FAILURE",
                "result": {"exc_type": "ValueError", "exc_message": ["no", 3], "exc_module": "builtins"},
            },
            TaskResult("FAILURE", error_type="ValueError", error="no, 3"),
        ),
        (
            {"status": "FAILURE", "result": {"exc_type": "Odd", "exc_message": "text"}},
            TaskResult("FAILURE", error_type="Odd", error="text"),
        ),
        (
            {
                "status": "FAILURE",
                "result": {"exc_type": "Declined", "exc_message": ["card 7", 402]},
                "traceback": TRACEBACK,
            },
            TaskResult(
                "FAILURE", error_type="Declined", error="the bank declined card 7 (402)\nValueError: is no end of it"
            ),
        ),
        (
            {
                "status": "FAILURE",
                "result": {"exc_type": "Declined", "exc_message": ["card 7", 402]},
                "traceback": "cut",
            },
            TaskResult("FAILURE", error_type="Declined", error="card 7, 402"),
        ),
        ({"status": "FAILURE", "result": KeyError("k")}, TaskResult("FAILURE", error_type="KeyError", error="'k'")),
        ({"status": "FAILURE", "result": None}, TaskResult("FAILURE", error_type="Exception", error="None")),
        (
            {"status": "REVOKED", "result": {"exc_type": "TaskRevokedError"}},
            TaskResult("REVOKED", error_type="TaskRevokedError"),
        ),
    ],
)
def test_a_result_is_read_in_each_form(meta: dict[str, Any], result: TaskResult) -> None:
    assert result_of(meta) == result


@pytest.mark.parametrize(
    ("result", "code", "message", "retryable"),
    [
        (TaskResult("FAILURE", error_type="ValueError", error="no"), "tool_error", "task shop.pay raised ValueError: no", True),
        (TaskResult("FAILURE", error_type="WorkerLostError", error="x"), "worker_lost", "task shop.pay raised WorkerLostError: x", True),
        (TaskResult("REVOKED", error="revoked"), "revoked", "task shop.pay was revoked", False),
        (TaskResult("REVOKED", error="expired"), "timeout", "task shop.pay was not begun within its time limit", True),
        (TaskResult("FAILURE", error_type=UNREADABLE, error="x"), UNREADABLE, "the result of task shop.pay cannot be read: x", False),
        (TaskResult("FAILURE", error_type="NotRegistered"), "unknown_task", "did you mean 'shop.buy'?", False),
    ],
)  # fmt: skip
def test_a_failure_says_which_task_and_why(result: TaskResult, code: str, message: str, retryable: bool) -> None:
    with pytest.raises(StepError) as failed:
        result.outcome("shop.pay", ["shop.buy"])

    assert (failed.value.code, failed.value.retryable) == (code, retryable)
    assert message in str(failed.value)


@pytest.mark.parametrize("result", [TaskResult("LATE", error="4 s"), TaskResult("REVOKED", error="expired")])
def test_a_late_task_names_its_queue(result: TaskResult) -> None:
    with pytest.raises(StepError, match="queue 'celery', to which it was sent"):
        result.outcome("shop.pay", queue="celery")
    with pytest.raises(StepError, match="its queue"):
        result.outcome("shop.pay")


@pytest.mark.parametrize(
    ("backend", "has_results"),
    [
        (None, False),
        ("rpc://", False),
        ("redis://127.0.0.1:1", True),
        ("cache+memory://", False),
        ("file:///tmp", True),
    ],
)
def test_results_are_read_where_other_processes_can_read_them(backend: str | None, has_results: bool) -> None:
    assert task_results.has_results(Celery("shop", backend=backend, set_as_current=False)) == has_results


def test_pickled_results_are_refused_where_they_would_be_read() -> None:
    task_results.check(Celery("shop", set_as_current=False, result_serializer="pickle"))
    with pytest.raises(ConfigError, match="stores results with pickle"):
        task_results.check(
            Celery("shop", backend="redis://127.0.0.1:1", set_as_current=False, result_serializer="pickle")
        )
