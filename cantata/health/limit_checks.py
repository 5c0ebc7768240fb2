"""Check of the limits that all workers share. Pure."""

from __future__ import annotations

from cantata.health.facts import LimitFacts, Unavailable
from cantata.health.report import Check, degraded, failing, ok
from cantata.text_format import duration

HIGH = 0.8  # of the daily budget


def check_limits(facts: LimitFacts | Unavailable | None) -> list[Check]:
    """Return a check of the model limits and the daily budget, if the local configuration sets any."""
    if facts is None:
        return []
    if isinstance(facts, Unavailable):
        return [degraded("limits", f"the limits cannot be read: {facts.reason}")]
    return [_limits(facts)]


def _limits(facts: LimitFacts) -> Check:
    spent = _spent_part(facts)
    if spent >= 1:
        return failing("limits", "the daily budget is spent: runs end as exhausted", "raise limits.budgets.day, or wait until midnight UTC")
    models = facts.usage.models
    paused = [f"{name} for {duration(found.paused_s * 1000)}" for name, found in models.items() if found.paused_s > 0]
    if paused:
        return degraded("limits", f"providers asked for a pause: {', '.join(paused)}", "wait, or lower the limits of these models")
    if spent > HIGH:
        return degraded("limits", f"{spent:.0%} of the daily budget is spent", "raise limits.budgets.day if that is too little")
    waiting = [f"{found.waiting:,} waiting for {name}" for name, found in models.items() if found.waiting]
    return ok("limits", ", ".join(waiting) or "no calls waiting")


def _spent_part(facts: LimitFacts) -> float:
    """Return the part of the daily budget that is spent: of tokens or of dollars, the larger one."""
    budget, usage = facts.limits.budgets.day, facts.usage
    return max(
        usage.spent_tokens / budget.tokens if budget.tokens else 0.0,
        usage.spent_usd / budget.usd if budget.usd else 0.0,
    )
