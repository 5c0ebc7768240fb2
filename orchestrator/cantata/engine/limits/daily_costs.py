"""Costs of model calls by day (UTC), as the ledger adds them up for each tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from pydantic import Field

from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import SHARDS, shard_key
from cantata.ledger.redis.pieces import ask_each
from cantata.values import Value

MAX_DAYS = 31  # for which the ledger keeps them


class DayCost(Value):
    """Cost of one day."""

    day: date = Field(description="the day, UTC")
    cost_usd: float = Field(description="what the model calls that ended then cost, as far as prices are known")


def read(ledger: Ledger, tenant: str | None, days: int) -> Sequence[DayCost]:
    """Return the costs of a tenant (None: of all) on the last days, the newest first."""
    today = int(clock.now() // 86400)
    found = [today - number for number in range(days)]
    keys = [f"{shard_key(ledger.redis, shard)}:costs:{day}" for day in found for shard in range(SHARDS)]
    if tenant is None:
        replies = ledger.with_retries(lambda: ask_each(ledger.redis, keys, lambda pipe, key: pipe.hvals(key)))
    else:
        replies = ledger.with_retries(lambda: ask_each(ledger.redis, keys, lambda pipe, key: pipe.hmget(key, tenant)))
    sums = [
        sum(float(cost or 0) for shard in replies[n * SHARDS : (n + 1) * SHARDS] for cost in shard) for n in range(days)
    ]
    return [
        DayCost(day=date(1970, 1, 1) + timedelta(days=day), cost_usd=cost)
        for day, cost in zip(found, sums, strict=True)
    ]
