"""Requests and results: the kinds of nodes, and the error of a run that did not succeed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata.errors import RunError
from cantata.flows.wire import NODE_KINDS, ChainError, ChainRequest, RunOutcome, fault_of_kind
from cantata.values import ErrorInfo


@pytest.mark.parametrize(
    ("kind", "end"),
    [("tol", "found 'tol'; did you mean 'tool'?"), ("", "found ''"), ("x" * 99, f"found {'x' * 60!r}")],
)
def test_an_unknown_kind_is_answered_with_all_kinds_and_the_nearest(kind: str, end: str) -> None:
    expected = "expected 'tool', 'skill', 'agent', 'chain', 'workflow', 'proc', 'branch', 'map' or 'wait', "

    assert fault_of_kind(kind) == expected + end
    assert [fault_of_kind(each) for each in NODE_KINDS] == [None] * len(NODE_KINDS)


def test_an_unknown_kind_does_not_hide_the_other_faults_of_a_request() -> None:
    node = {"node_id": "a", "kind": "tol"}

    assert ChainRequest.model_validate({"nodes": [node]}).nodes[0].kind == "tol"
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ChainRequest.model_validate({"nodes": [{**node, "nmae": "x"}]})


@pytest.mark.parametrize(
    ("outcome", "message", "code"),
    [
        (RunOutcome(run_id="r", status="failed", error=ErrorInfo(code="c", message="m")), "run r failed: m", "c"),
        (RunOutcome(run_id="r", status="timed_out", error=ErrorInfo(code="c", message="m")), "run r timed out: m", "c"),
        (RunOutcome(run_id="", status="failed", error=ChainError(code="bad_entry", message="m")), "m", "bad_entry"),
        (RunOutcome(run_id="r", status="running"), "run r has no answer yet: it is running", "not_over"),
    ],
)
def test_an_outcome_that_is_no_success_is_raised_with_its_reason(outcome: RunOutcome, message: str, code: str) -> None:
    with pytest.raises(RunError) as raised:
        outcome.raise_for_status()

    error = raised.value
    assert (str(error), error.code, error.run_id, error.status) == (message, code, outcome.run_id, outcome.status)


def test_a_success_is_returned() -> None:
    outcome = RunOutcome(run_id="r", status="succeeded")

    assert outcome.raise_for_status() is outcome
