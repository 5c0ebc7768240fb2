"""How far a chain is follows from its run."""

from __future__ import annotations

import pytest

from cantata.flows.graph import Spec
from cantata.flows.wire import RunStatus
from cantata.ledger.records import RunRecord, StepRecord
from cantata.values import ErrorInfo, Usage
from cantata_frontends.chainbuilder.builder_state import ChainProgress, progress_in

ERROR = ErrorInfo(code="cancelled", message="the run was cancelled")


def run(status: RunStatus) -> RunRecord:
    step = StepRecord("a", "waiting", 0, 0, 0, "", Spec(kind="agent"), None, {})
    return RunRecord("r", status, "chain", "{}", "{}", 0, 1, 1, ERROR, Usage(), 1, 1, 0, ("a",), {}, {}, {"a": step})


@pytest.mark.parametrize("status", ["cancelled", "timed_out"])
def test_a_chain_whose_run_was_ended_before_it_began_has_failed(status: RunStatus) -> None:
    assert progress_in(run(status), "a") == ChainProgress(status="failed", run_id="r", error=ERROR)


def test_a_chain_that_a_failed_one_kept_from_beginning_is_as_it_was_made() -> None:
    assert progress_in(run("failed"), "a") == ChainProgress()
    assert progress_in(run("running"), "a") == ChainProgress(run_id="r")
