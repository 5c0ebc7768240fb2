"""Counters of alerts: failed runs within a time, and the begin of a condition that lasts.

The keys lie in a shard S that follows from the alert's name, which has its tenant and definitions; each expires after the alert's time.

S:alerts:<alert>         zset    failed run -> when it failed (ms)
S:alerts:<alert>:raised  string  the message that reported them
S:alerts:<alert>:since   string  when the condition began (s)
"""

from __future__ import annotations

from typing import cast

from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import shard_key, shard_of


def is_due(ledger: Ledger, alert: str, run_id: str, at_ms: int, message: str, *, count: int, within_s: float) -> bool:
    """Count a failed run; return whether `message` is to report that `count` failed in `within_s`.

    One message reports them; the next at the earliest `within_s` later. A repetition counts once, and returns the same.
    """
    key, within_ms = _key(ledger, alert), int(within_s * 1000)

    def count_run() -> int:
        with ledger.redis.pipeline(transaction=True) as pipe:
            pipe.zadd(key, {run_id: at_ms})
            pipe.zremrangebyscore(key, "-inf", at_ms - within_ms)
            pipe.zcard(key)
            pipe.pexpire(key, within_ms)
            return int(pipe.execute()[2])

    if ledger.with_retries(count_run) < count:
        return False
    raised = ledger.with_retries(lambda: ledger.redis.set(f"{key}:raised", message, nx=True, get=True, px=within_ms))
    return raised in (None, message)


def lasts(ledger: Ledger, alert: str, *, within_s: float) -> bool:
    """Return whether this has been called for `within_s`, without a pause twice as long."""
    key, now = f"{_key(ledger, alert)}:since", clock.now()
    since = cast("str | None", ledger.with_retries(lambda: ledger.redis.set(key, now, nx=True, get=True)))
    ledger.with_retries(lambda: ledger.redis.pexpire(key, int(2 * within_s * 1000)))
    return now - float(since or now) >= within_s


def _key(ledger: Ledger, alert: str) -> str:
    return f"{shard_key(ledger.redis, shard_of(alert))}:alerts:{alert}"
