"""What is said of the limits that all workers share. Pure."""

from __future__ import annotations

from cantata.health.facts import Missing, Shared
from cantata.health.report import Line, green, red, yellow
from cantata.text_format import duration

NEARLY = 0.8  # of what may be spent in a day


def of_limits(shared: Shared | Missing | None) -> list[Line]:
    """A line for the limits of models and the budget of the day, if the configuration here names any."""
    if shared is None:
        return []
    if isinstance(shared, Missing):
        return [yellow("limits", f"how they stand is not known: {shared.why}")]
    return [_of(shared)]


def _of(shared: Shared) -> Line:
    spent = _spent(shared)
    if spent >= 1:
        return red(
            "limits", "the budget of this day is spent: runs end as exhausted", "raise limits.budgets.day, or wait until midnight UTC"
        )
    models = shared.standing.models
    paused = [f"{name} for {duration(found.paused_s * 1000)}" for name, found in models.items() if found.paused_s > 0]
    if paused:
        return yellow("limits", f"providers asked for a pause: {', '.join(paused)}", "wait, or lower the limits of these models")
    if spent > NEARLY:
        return yellow("limits", f"{spent:.0%} of the budget of this day are spent", "raise limits.budgets.day if that is too little")
    waiting = [f"{found.waiting:,} wait for {name}" for name, found in models.items() if found.waiting]
    return green("limits", ", ".join(waiting) or "nothing waits for them")


def _spent(shared: Shared) -> float:
    """How much of what may be spent in a day was: of tokens or of dollars, whichever is more."""
    budget, standing = shared.limits.budgets.day, shared.standing
    return max(
        standing.spent_tokens / budget.tokens if budget.tokens else 0.0,
        standing.spent_usd / budget.usd if budget.usd else 0.0,
    )
