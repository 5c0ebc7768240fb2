"""Estimates of our share of Redis's memory, from the size of one run and one session of each shard.

One round trip, whatever the number of runs; Redis works 2 to 4 ms for it, in 64 short calls.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Sequence

from redis import Redis

from cantata.ledger.redis.keys import SHARDS, shard_key
from cantata.ledger.scripts import SCRIPTS

EVERY_S = 15.0  # the usual scrape interval of Prometheus; in between the last estimate is returned
ROUNDS = 8  # measurements in the mean: sizes differ by far


class Sizes:
    """The latest measurements. Used by one thread at a time."""

    def __init__(self) -> None:
        self._runs, self._sessions = _Family(), _Family()
        self._known: float | None = None
        self._measured_at = -math.inf

    def estimate(self, redis: Redis) -> float | None:
        """Return the bytes of all runs and sessions, at most EVERY_S old; None if Redis denies measuring."""
        now = time.monotonic()
        if now - self._measured_at >= EVERY_S:
            self._known = self._measure(redis)
            self._measured_at = now
        return self._known

    def _measure(self, redis: Redis) -> float | None:
        calls = [(shard_key(redis, shard), (str(random.getrandbits(31)),)) for shard in range(SHARDS)]
        replies: list[list[int]] = SCRIPTS.call_each(redis, "fleet/sizes", calls)
        if not all(replies):
            return None
        return self._runs.bytes([reply[:2] for reply in replies]) + self._sessions.bytes(
            [reply[2:] for reply in replies]
        )


class _Family:
    """The latest measurements of runs, or of sessions: their number, and about how many bytes they take together."""

    def __init__(self) -> None:
        self._rounds = deque[tuple[int, int]](maxlen=ROUNDS)

    def bytes(self, shards: Sequence[Sequence[int]]) -> float:
        """Return the bytes of all, from the number and the size of one in each shard."""
        count = sum(count for count, _ in shards)
        self._rounds.append((count, sum(count * size for count, size in shards)))
        counted = sum(each for each, _ in self._rounds)
        return count * sum(size for _, size in self._rounds) / counted if counted else 0.0
