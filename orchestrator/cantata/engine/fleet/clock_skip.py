"""Skipping of time in a test stack: `skip.lua` moves timers and expiries forward, and the sweepers sweep at once.

The clock itself is not moved: all processes share it, and live ones keep their leases by it.

skips  stream of the namespace: wakes the sweepers of a stack with virtual time; keeps one entry
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from cantata.errors import ConfigError, UnavailableError
from cantata.ledger.redis.keys import SHARDS, key_of, namespace_of, shard_key, shard_of
from cantata.ledger.redis.pieces import streams_in
from cantata.ledger.redis.redis_errors import reason
from cantata.ledger.scripts import TEXTS

SKIPS_KEY = "skips"
MAX_S = 100 * 365 * 86_400.0
PATIENCE_S = 60.0  # a killed worker is replaced within this time, on a busy machine too
POLL_S = 0.005


def bring_nearer(redis: Redis, seconds: float) -> int:
    """Move timers and expiries forward by so many seconds; return the time (ms) by which entries are due.

    Raises ConfigError unless `seconds` is a number from 0.001.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds <= MAX_S:
        raise ConfigError(f"the seconds to be skipped are a number from 0.001 to {MAX_S:.0f}, not {seconds!r}")
    return cast(int, redis.eval(TEXTS["fleet/skip"], 1, namespace_of(redis), str(round(seconds * 1000))))


def timers_of(redis: Redis, run_id: str) -> dict[str, float]:
    """Return the first timer of each kind that a run has, as the seconds until it is due: `retry`, `permit`, `join`, `wait`, `deadline`."""
    seconds, micros = redis.time()
    now = seconds + micros / 1e6
    entries = cast(
        "list[tuple[str, float]]", redis.zrange(f"{shard_key(redis, shard_of(run_id))}:due", 0, -1, withscores=True)
    )
    found = [(member.split("|", 2), due / 1000 - now) for member, due in reversed(entries)]
    return {kind: left_s for (kind, run, _), left_s in found if run == run_id}


def skip(redis: Redis, seconds: float, *, patience_s: float = PATIENCE_S) -> None:
    """Skip time, and return when the ledger has handled all that became due.

    Raises ConfigError unless `seconds` is a number from 0.001, UnavailableError if no worker sweeps, or Redis is away.
    """
    give_up = time.monotonic() + patience_s
    try:
        due_by = bring_nearer(redis, seconds)
        while _count_due(redis, due_by):
            if time.monotonic() > give_up:
                raise UnavailableError(
                    f"the timers that became due were not handled within {patience_s:g} s: no worker of this stack sweeps"
                )
            time.sleep(POLL_S)
    except RedisError as error:
        raise UnavailableError(reason(error)) from error


def _count_due(redis: Redis, due_by: int) -> int:
    """Wake the sweepers, and count the entries that they still have to handle."""
    with redis.pipeline(transaction=False) as pipe:
        for shard in range(SHARDS):
            for part in ("due", "finished", "schedules"):
                pipe.zcount(f"{shard_key(redis, shard)}:{part}", "-inf", due_by)
        pipe.xadd(key_of(redis, SKIPS_KEY), {"by": due_by}, maxlen=1, approximate=False)
        *counts, _ = pipe.execute()
    return sum(counts)


class SkipListener:
    """The pause of a sweeper between two sweeps, which ends early when time was skipped."""

    def __init__(self, redis: Redis) -> None:
        self._read = partial(redis.xread, count=1)
        self._key = key_of(redis, SKIPS_KEY)
        self._seen = "0"

    def wait(self, timeout_s: float) -> None:
        """Return after so many seconds, or when time was skipped since the last call."""
        give_up = time.monotonic() + timeout_s
        with suppress(RedisError):  # the sweep logs it
            found = streams_in(self._read({self._key: self._seen}, block=max(1, int(timeout_s * 1000))))
            if found:
                self._seen = found[self._key][-1][0]
                return
        time.sleep(max(0.0, give_up - time.monotonic()))
