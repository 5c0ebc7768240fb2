"""Forecast of when Redis is full, from samples of its memory that the process that sweeps takes once a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import linear_regression
from typing import Any, cast

from redis import Redis

from cantata.ledger.redis import clock
from cantata.ledger.redis.cluster import memory_of
from cantata.ledger.redis.keys import key_of

SAMPLES_KEY = "memory_samples"  # list: the time (s) and the used bytes of each sample, `1700000000 1234`, the newest first; expires
EVERY_S = 60.0
MOST = 60  # samples: the last hour counts
EXPIRE_S = 7200
LEAST_SPAN_S = 600.0  # of samples, before they tell anything
FAR_S = 7 * 86_400.0  # a forecast of more is none

Sample = tuple[float, float]
"""A time, in seconds by Redis's clock, and the bytes used then."""


def used_and_limit(nodes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the bytes that all nodes use, and their maxmemory together; 0 if one of them has none."""
    limits = [int(node.get("maxmemory", 0)) for node in nodes]
    return sum(int(node["used_memory"]) for node in nodes), sum(limits) if all(limits) else 0


def take_sample(redis: Redis) -> None:
    """Record the memory that Redis uses now."""
    used, _ = used_and_limit(memory_of(redis))
    key = key_of(redis, SAMPLES_KEY)
    with redis.pipeline(transaction=False) as pipe:
        pipe.lpush(key, f"{clock.now():.0f} {used}")
        pipe.ltrim(key, 0, MOST - 1)
        pipe.expire(key, EXPIRE_S)
        pipe.execute()


def samples(redis: Redis) -> list[Sample]:
    """Return the samples of the last hour, without those that cannot be read."""
    found = []
    for text in cast("list[str]", redis.lrange(key_of(redis, SAMPLES_KEY), 0, MOST - 1)):
        with suppress(ValueError):
            at, used = map(float, text.split())
            found.append((at, used))
    return found


def full_in_s(taken: Sequence[Sample], used: float, limit: float) -> float | None:
    """Return the seconds until `used` reaches `limit`, if it grows as in the samples; None if it does not grow, or nothing can be said."""
    times = [at for at, _ in taken]
    if not limit or len(times) < 2 or max(times) - min(times) < LEAST_SPAN_S:
        return None
    growth = linear_regression(times, [each for _, each in taken]).slope
    if growth <= 0:
        return None
    left_s = max(0.0, limit - used) / growth
    return left_s if left_s < FAR_S else None
