"""The exit status of a run."""

from __future__ import annotations

import pytest

from cantata.flows.wire import RunResult, RunState, RunStatus
from cantata.surfaces.cli.connection import has_succeeded


@pytest.mark.parametrize(
    ("status", "state", "expected"),
    [("succeeded", "succeeded", True), ("succeeded", "succeeded_with_failures", False), ("failed", "failed", False)],
)
def test_a_turn_with_failed_members_has_not_succeeded(status: RunStatus, state: RunState, expected: bool) -> None:
    assert has_succeeded(RunResult(run_id="run", status=status, state=state)) is expected
