"""Counts what this process does, if it was told where to show it; if not, each call here is one look at a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantata.models.values import Usage

if TYPE_CHECKING:
    from cantata.observability.metrics.counts import Counts

_counts: Counts | None = None


def set_counts(counts: Counts | None) -> None:
    """Count with these from now on; None stops counting."""
    global _counts
    _counts = counts


def record_step_started(queue: str, waited_s: float | None) -> None:
    """A step was begun; `waited_s` after it was sent, None if it went through no queue."""
    if _counts is not None and waited_s is not None:
        _counts.observe("cantata_queue_wait_seconds", (queue,), waited_s)


def record_step_ended(kind: str, status: str, took_s: float) -> None:
    """An attempt of a step ended: done, failed, retry, wait, or dropped, if its outcome counts for nothing."""
    if _counts is not None:
        _counts.add("cantata_steps_total", (kind, status))
        _counts.observe("cantata_step_duration_seconds", (kind,), took_s)


def record_model_call(model: str, outcome: str, took_s: float, usage: Usage | None) -> None:
    """A model was asked: `outcome` is ok, cancelled, or the code of the error."""
    if _counts is None:
        return
    _counts.add("cantata_model_calls_total", (model, outcome))
    _counts.observe("cantata_model_call_duration_seconds", (model,), took_s)
    if usage is not None:
        _counts.add("cantata_model_tokens_total", (model, "input"), usage.input_tokens)
        _counts.add("cantata_model_tokens_total", (model, "output"), usage.output_tokens)
        _counts.add("cantata_model_cost_usd_total", (model,), usage.cost_usd or 0.0)


def record_limit_wait(model: str, reason: str, wait_s: float) -> None:
    """A model call had no room in the shared limits, and was told to come again after `wait_s`."""
    if _counts is not None:
        _counts.add("cantata_limit_waits_total", (model, reason))
        _counts.add("cantata_limit_wait_seconds_total", (model, reason), wait_s)


def record_budget_refusal(budget: str) -> None:
    """A model call was not made, since a budget has no room for it: run, tenant or day."""
    if _counts is not None:
        _counts.add("cantata_budget_refusals_total", (budget,))
