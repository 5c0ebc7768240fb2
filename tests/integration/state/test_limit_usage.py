"""How shared limits stand, for those who only look."""

from __future__ import annotations

from cantata.models.definitions import Budget, Budgets, Limits, Rates
from cantata.state.ledger.ledger import Ledger
from cantata.state.limits.limiter import Ask, Granted, Limiter, Wait, read_usage

LIMITS = Limits(models={"a/b": Rates(concurrency=1)}, budgets=Budgets(day=Budget(usd=10.0, tokens=10_000)))


def ask(step: str) -> Ask:
    return Ask(holder=f"run|1|worker~1|{step}", model="a/b", tokens=100, usd=0.5)


def test_what_waits_what_is_paused_and_what_was_spent_today(ledger: Ledger) -> None:
    limiter = Limiter(ledger)
    assert isinstance(limiter.take(ask("one"), LIMITS), Granted)
    assert isinstance(limiter.take(ask("two"), LIMITS), Wait)

    waits = read_usage(ledger.redis, ["a/b", "c/d"])
    limiter.settle(ask("one").holder, tokens=90, usd=0.25)
    limiter.pause("a/b", 60.0)
    spent = read_usage(ledger.redis, ["a/b"])

    assert (waits.models["a/b"].waiting, waits.models["c/d"].waiting) == (1, 0)
    assert (waits.models["a/b"].paused_s, waits.spent_tokens) == (0.0, 0)
    assert 50 < spent.models["a/b"].paused_s <= 60
    assert (spent.spent_tokens, spent.spent_usd) == (90, 0.25)
