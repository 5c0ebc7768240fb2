"""The progress of a builder's chain: as stored, or as the ledger has it for an open run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cantata.models.values import ErrorInfo, JsonValue, Value
from cantata.models.wire import RUN_OVER
from cantata.state.ledger.records import RunRecord, StepRecord

ENDED_FROM_OUTSIDE = frozenset({"cancelled", "timed_out"})
"""Statuses of runs that ended by cancellation or by their time limit, with chains in any state."""
Status = Literal["created", "running", "completed", "failed"]


class ChainProgress(Value):
    """The stored progress of a chain; the ledger has newer progress while its run is open."""

    status: Status = "created"
    run_id: str = Field(default="", description="the run it was last executed in")
    output: JsonValue = None
    error: ErrorInfo | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the ledger may have newer progress."""
        return bool(self.run_id) and self.status in ("created", "running")


def progress_in(run: RunRecord, chain_id: str) -> ChainProgress:
    """Return the progress of a chain in its run."""
    step = run.answering(chain_id)
    is_over = run.status in RUN_OVER
    if step is None:  # not planned yet, or never
        return ChainProgress(status="failed" if is_over else "running", run_id=run.run_id, error=run.error)
    if step.state == "done":
        return ChainProgress(status="completed", run_id=run.run_id, output=step.output)
    if step.state == "failed":
        return ChainProgress(status="failed", run_id=run.run_id, error=step.error or run.error)
    if not _has_begun(step, chain_id) and run.status not in ENDED_FROM_OUTSIDE:
        return ChainProgress(run_id="" if is_over else run.run_id)
    return ChainProgress(status="failed" if is_over else "running", run_id=run.run_id, error=run.error)


def _has_begun(step: StepRecord, chain_id: str) -> bool:
    return step.attempt > 0 or step.state in ("sent", "running") or step.step_id != chain_id  # it has expanded
