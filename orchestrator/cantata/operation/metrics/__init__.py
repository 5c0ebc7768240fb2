"""Recording of metrics in this process; without an address to serve them at, each call here costs one check of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantata.values import Usage

if TYPE_CHECKING:
    from cantata.operation.metrics.counts import Counts

TOOL = "tools:"
"""What the work of a step begins with that calls a tool."""

_counts: Counts | None = None


def set_counts(counts: Counts | None) -> None:
    """Set the counts to record in; None stops recording."""
    global _counts
    _counts = counts


def record_step_started(queue: str, waited_s: float | None) -> None:
    """Record the start of a step, `waited_s` after it was dispatched; None if it passed no queue."""
    if _counts is not None and waited_s is not None:
        _counts.observe("cantata_queue_wait_seconds", (queue,), waited_s)


def record_step_ended(kind: str, work: str, status: str, took_s: float) -> None:
    """Record the end of an attempt: done, failed, retry, wait, or dropped if the ledger refused its outcome. `work` is that of its spec."""
    if _counts is not None:
        _counts.add("cantata_steps_total", (kind, status))
        _counts.observe("cantata_step_duration_seconds", (kind,), took_s)
        if work.startswith(TOOL):
            _counts.add("cantata_tool_calls_total", (work.removeprefix(TOOL), status))


def records_runs() -> bool:
    """Return whether durations of runs are recorded."""
    return _counts is not None


def record_run_ended(name: str, status: str, tenant: str, took_s: float) -> None:
    """Record the end of a run."""
    if _counts is not None:
        _counts.observe("cantata_run_duration_seconds", (name, status, tenant), took_s)


def record_first_token(model: str, took_s: float) -> None:
    """Record how long after a streamed call the first piece of its text came."""
    if _counts is not None:
        _counts.observe("cantata_model_first_token_seconds", (model,), took_s)


def record_model_call(model: str, outcome: str, tenant: str, took_s: float, usage: Usage | None) -> None:
    """Record a model call: `outcome` is ok, cancelled, or the code of the error."""
    if _counts is None:
        return
    _counts.add("cantata_model_calls_total", (model, outcome, tenant))
    _counts.observe("cantata_model_call_duration_seconds", (model,), took_s)
    if usage is not None:
        _counts.add("cantata_model_tokens_total", (model, "input", tenant), usage.input_tokens)
        _counts.add("cantata_model_tokens_total", (model, "output", tenant), usage.output_tokens)
        _counts.add("cantata_model_cost_usd_total", (model, tenant), usage.cost_usd or 0.0)


def record_limit_wait(model: str, reason: str, wait_s: float) -> None:
    """Record a model call that the shared limits deferred by `wait_s`."""
    if _counts is not None:
        _counts.add("cantata_limit_waits_total", (model, reason))
        _counts.add("cantata_limit_wait_seconds_total", (model, reason), wait_s)


def record_budget_refusal(budget: str) -> None:
    """Record a model call that was not made, since a budget is spent: run, tenant or day."""
    if _counts is not None:
        _counts.add("cantata_budget_refusals_total", (budget,))


def record_schedule_times(outcome: str, count: int) -> None:
    """Record times of a schedule that were fired, queued, skipped or missed."""
    if _counts is not None and count:
        _counts.add("cantata_schedule_times_total", (outcome,), count)


def record_schedule_lateness(late_s: float) -> None:
    """Record how late the run of a scheduled time was started."""
    if _counts is not None:
        _counts.observe("cantata_schedule_lateness_seconds", (), late_s)


def record_sweep_error(duty: str) -> None:
    """Record that a duty of the sweep, or an item of it, failed."""
    if _counts is not None:
        _counts.add("cantata_sweep_errors_total", (duty,))
