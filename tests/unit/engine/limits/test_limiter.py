"""What the limiter does without Redis: what configuration says, how a call is named, what people are told."""

from __future__ import annotations

import pytest

from cantata.config.documents import parse
from cantata.config.native import load_definitions
from cantata.engine.limits.limiter import Ask, Exhausted
from cantata.errors import ConfigError
from cantata.flows.definitions import Budget, Budgets, Definitions, Limits, Rates

WHOLE = """
version: 1
limits:
  max_nodes: 5
  models: {openai/gpt-4o-mini: {rpm: 500, tpm: 200000, concurrency: 50}}
  tenants: {acme: {rpm: 60}}
  budgets:
    run: {usd: 0.50, tokens: 50000}
    tenant: {usd: 20}
    day: {tokens: 1000000}
"""


def test_a_configuration_declares_limits() -> None:
    limits = load_definitions(parse(WHOLE)).limits

    assert limits == Limits(
        max_nodes=5,
        models={"openai/gpt-4o-mini": Rates(rpm=500, tpm=200_000, concurrency=50)},
        tenants={"acme": Rates(rpm=60)},
        budgets=Budgets(run=Budget(usd=0.5, tokens=50_000), tenant=Budget(usd=20), day=Budget(tokens=1_000_000)),
    )


def test_limits_are_stored_with_the_run_as_they_were_declared() -> None:
    definitions = load_definitions(parse(WHOLE))

    text = definitions.model_dump_json(exclude_defaults=True, by_alias=True)

    assert Definitions.model_validate_json(text) == definitions


@pytest.mark.parametrize(
    "limits",
    [
        "models: {m: {rpm: 0}}",
        "models: {m: {rps: 1}}",
        "tenants: {t: {tpm: many}}",
        "budgets: {run: {eur: 1}}",
        "budgets: {run: {usd: -1}}",
    ],
)
def test_a_limit_that_is_none_is_refused(limits: str) -> None:
    with pytest.raises(ConfigError):
        load_definitions(parse(f"version: 1\nlimits: {{{limits}}}"))


def test_each_attempt_of_a_step_has_the_same_ticket() -> None:
    first, second = (Ask(f"run-1|{attempt}|agents@host#1~ab~{attempt}|map/3|x", "model", 1) for attempt in (1, 2))

    assert (first.run_id, first.ticket) == ("run-1", "run-1|map/3|x")
    assert second.ticket == first.ticket


@pytest.mark.parametrize(
    ("exhausted", "told"),
    [
        (
            Exhausted("day", "tokens", 1_000_000, 999_500, 1200),
            "999,500 tokens of the 1,000,000 tokens of limits.budgets.day.tokens are spent, and this call may take 1,200 tokens",
        ),
        (
            Exhausted("run", "usd", 0.5, 0.4987, 0.004),
            "$0.4987 of the $0.5 of limits.budgets.run.usd are spent, and this call may take $0.004",
        ),
        (
            Exhausted("tenant", "usd", 20, 20, 0),
            "$20 of the $20 of limits.budgets.tenant.usd are spent, and this call may take $0",
        ),
    ],
)
def test_people_are_told_what_was_spent(exhausted: Exhausted, told: str) -> None:
    assert str(exhausted) == f"{told}; raise the budget, or ask for less"
