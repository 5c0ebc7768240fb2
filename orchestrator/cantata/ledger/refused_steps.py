"""Steps that workers refused lately, since they could not execute them, for `submit status`."""

from __future__ import annotations

from typing import cast

from pydantic import ValidationError
from redis import Redis

from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import key_of

KEY = "refused_steps"  # sorted set: "run step: why" by Redis's clock; older ones go, and it expires
FRESH_S = 60  # a refused step is sent again sooner
MAX_KEPT = 100


def too_old(unknown: str) -> str:
    """Return the reason for refusing a step with unknown fields."""
    return f"this worker does not know {unknown}, so it is older than the run: upgrade it"


def cannot_read(error: ValidationError) -> str:
    """Return the reason for refusing a step or definitions that this version cannot read."""
    found = [(".".join(map(str, each["loc"])), each) for each in error.errors(include_input=False)]
    if all(each["type"] == "extra_forbidden" for _, each in found):
        return too_old(f"field {', '.join(where for where, _ in found)}")
    words = ", ".join(f"{where or 'the whole'} ({each['msg']})" for where, each in found)
    return f"this worker cannot read field {words}: it is older than the run, or the record is damaged; upgrade it, or cancel the run"


def record(redis: Redis, run_id: str, step_id: str, why: str) -> None:
    """Record why a step was refused, for a minute."""
    key = key_of(redis, KEY)
    with redis.pipeline(transaction=False) as pipe:
        pipe.zadd(key, {f"step {step_id!r} of run {run_id}: {why}": clock.now()})
        pipe.zremrangebyrank(key, 0, -MAX_KEPT - 1)
        pipe.expire(key, FRESH_S)
        pipe.execute()


def recent(redis: Redis) -> list[str]:
    """Return the steps refused in the last minute, newest first, as text."""
    return cast("list[str]", redis.zrangebyscore(key_of(redis, KEY), clock.synchronize(redis) - FRESH_S, "+inf"))[::-1]
