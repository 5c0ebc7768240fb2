"""Says what the shared limits still hold when all runs are over and a lease has passed, which must be nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import cast

from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY, Limiter
from cantata.ledger.intervals import LEASE_S
from cantata.ledger.ledger import Ledger
from tests.faults.past import Violation
from tests.waiting import until

PATIENCE_S = LEASE_S + 1.0
ACTIVE, LATE, PERMITS = (f"cantata:{LIMITS_KEY}:{name}" for name in ("active", "late", "permits"))
NOTHING = "nothing reserved or held a lease after all runs are over"


def check(redis: Redis) -> Iterator[Violation]:
    """No call holds a slot, waits in a queue or has anything set aside; what one took is kept only where its cost may still be told."""
    _give_up_dead(redis)
    for key, entry in (*_calls(redis), *_limits(redis), *_budgets(redis)):
        yield Violation("", "", NOTHING, f"{entry} in {key!r}")


def _give_up_dead(redis: Redis) -> None:
    """Wait until no call is held, a lease at most. Calls whose holders are dead are given up when the next is made; here there is none."""
    limiter = Limiter(Ledger(redis))

    def is_free() -> bool:
        limiter.renew(())
        return not redis.zcard(ACTIVE)

    with suppress(TimeoutError):
        until(is_free, "the end of all calls", PATIENCE_S)


def _calls(redis: Redis) -> Iterator[tuple[str, str]]:
    late = set(cast("list[str]", redis.zrange(LATE, 0, -1)))
    yield from ((ACTIVE, repr(holder)) for holder in cast("list[str]", redis.zrange(ACTIVE, 0, -1)))
    yield from ((PERMITS, repr(holder)) for holder in cast("list[str]", redis.hkeys(PERMITS)) if holder not in late)


def _limits(redis: Redis) -> Iterator[tuple[str, str]]:
    for key in _keys(redis, "model:*:slots"):
        yield from ((key, repr(holder)) for holder in sorted(cast("set[str]", redis.smembers(key))))
    for key in _keys(redis, "queue:*"):
        yield from ((key, repr(ticket)) for ticket in cast("list[str]", redis.zrange(key, 0, -1)))


def _budgets(redis: Redis) -> Iterator[tuple[str, str]]:
    for key in _keys(redis, "budget:*"):
        for field, amount in cast("dict[str, str]", redis.hgetall(key)).items():
            if field.startswith("reserved_") and int(amount):
                yield key, f"{amount} {field}"


def _keys(redis: Redis, pattern: str) -> list[str]:
    return sorted(cast("Iterator[str]", redis.scan_iter(match=f"cantata:{LIMITS_KEY}:{pattern}", count=1000)))
