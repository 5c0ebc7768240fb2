"""What a handler returned or raised becomes a record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cantata.errors import StepError
from cantata.flows.graph import Outcome, Spec
from cantata.ledger.records import Begun
from cantata.operation.logs.secrets import secrets_in
from cantata.values import JsonValue, Usage
from cantata_workers.process import outcomes


def begun(*, failures: int = 0, retries: int = 0, **params: JsonValue) -> Begun:
    return Begun("run", "step", 1, "worker", Spec(kind="k", retries=retries, params=params), None, failures, {}, "")


def test_an_output_is_recorded_as_compact_json() -> None:
    record = outcomes.record_of(
        begun(), Outcome(output={"ä": [1, [2]]}, usage=Usage(tool_calls=1)), limit_bytes=100, took_ms=1.234
    )

    assert record.output == '{"ä":[1,[2]]}'
    assert record.info == {"ms": 1.23, "by": "worker", "usage": {"tool_calls": 1}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1, 2}, "output: a value of type set is not JSON"),
        ({"a": [float("nan")]}, "output.a[0]: nan is not JSON"),
        ({"a": {2: 1}}, "output.a: the key 2 of type int"),
        ("\ud800", "half a surrogate pair"),
        ("x" * 101, "returned 0.0 MB of output"),
    ],
)
def test_what_is_no_json_or_too_large_fails_the_step_and_says_where(value: JsonValue, expected: str) -> None:
    record = outcomes.record_of(begun(), Outcome(output=value), limit_bytes=100, took_ms=0)

    assert record.outcome.status == "failed"
    assert record.outcome.error is not None
    assert expected in record.outcome.error.message


def test_a_failure_that_may_pass_is_tried_again_while_tries_are_left() -> None:
    error = StepError("busy", retryable=True)

    assert outcomes.failure_record(begun(retries=2), error).outcome.status == "retry"
    assert outcomes.failure_record(begun(retries=2, failures=1), error).outcome.status == "retry"
    assert outcomes.failure_record(begun(retries=2, failures=2), error).outcome.status == "failed"
    assert outcomes.failure_record(begun(retries=2), StepError("no")).outcome.status == "failed"


def test_the_retry_delay_increases_and_a_retry_after_is_honoured() -> None:
    pauses = [
        outcomes.failure_record(begun(retries=99, failures=n), StepError("", retryable=True)).outcome.retry_in_s
        for n in (0, 4, 20)
    ]

    assert 0.25 <= pauses[0] <= 0.5 < pauses[1] <= 8 < pauses[2] <= 30
    assert (
        outcomes.failure_record(begun(retries=1), StepError("", retryable=True, retry_after_s=7)).outcome.retry_in_s
        == 7
    )


def test_a_step_can_say_where_it_stood() -> None:
    record = outcomes.failure_record(begun(failure="Pipeline failed at step 2 (b): "), StepError("no"))

    assert record.outcome.error is not None
    assert record.outcome.error.message == "Pipeline failed at step 2 (b): no"


def test_an_unrecordable_error_message_is_shortened() -> None:
    odd, long = (
        outcomes.failure_record(begun(), StepError(text)).outcome.error for text in ("no file \udcff", "x" * 1_000_000)
    )

    assert odd is not None
    assert odd.message == "no file ?"
    assert long is not None
    assert len(long.message) < 5000
    assert long.message.endswith("(1000000 characters)")


def test_no_secret_of_the_environment_is_recorded_in_an_error_or_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2")

    failed = outcomes.failure_record(begun(), StepError("the token hunter2-hunter2 is wrong"))
    done = outcomes.record_of(begun(), Outcome(warnings=("hunter2-hunter2 is old",)), limit_bytes=100, took_ms=0)

    assert failed.outcome.error is not None
    assert failed.outcome.error.message == "the token *** is wrong"
    assert done.outcome.warnings == ("*** is old",)


def test_an_environment_that_loses_a_variable_meanwhile_costs_no_outcome() -> None:
    class Changing(dict[str, str]):
        """An environment from which another thread takes a variable between the list of its names and the look at it."""

        def __iter__(self) -> Iterator[str]:
            names = list(super().__iter__())
            self.pop("GONE_TOKEN", None)
            return iter(names)

    assert secrets_in(Changing(GONE_TOKEN="hunter2-hunter2", SHOP_TOKEN="hunter3-hunter3")) == ["hunter3-hunter3"]
