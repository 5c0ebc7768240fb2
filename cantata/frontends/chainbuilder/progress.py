"""How far a chain of a builder is: what was kept of it, or what the ledger knows of its run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cantata.models.values import ErrorInfo, JsonValue, Value
from cantata.models.wire import RUN_OVER
from cantata.state.ledger.records import RunRecord, StepRecord

ENDED_FROM_OUTSIDE = frozenset({"cancelled", "timed_out"})
"""What a run is that somebody or its time ended, whatever its chains were about."""
Status = Literal["created", "running", "completed", "failed"]


class ChainProgress(Value):
    """How far a chain is, as it is kept: while it runs, the run knows more."""

    status: Status = "created"
    run_id: str = Field(default="", description="the run it was last executed in")
    output: JsonValue = None
    error: ErrorInfo | None = None

    @property
    def is_open(self) -> bool:
        """Whether its run knows more."""
        return bool(self.run_id) and self.status in ("created", "running")


def progress_in(run: RunRecord, chain_id: str) -> ChainProgress:
    """How far a chain is in its run."""
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
    return step.attempt > 0 or step.state in ("sent", "running") or step.step_id != chain_id  # it grew
