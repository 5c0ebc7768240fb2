"""The cache of models' replies; the only module that knows its keys.

An entry may disappear at any time; if Redis is unavailable, the cache is empty.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from cantata.state.redis import keys

CACHE_KEY = "{cache}"  # S:<sha256 of a request> string: the reply as JSON; lives as long as the model's `cache` says


def recall(redis: Redis, digest: str) -> str | None:
    """Return the entry under a digest, or None."""
    with suppress(RedisError):
        return cast("str | None", redis.get(keys.key_of(redis, f"{CACHE_KEY}:{digest}")))
    return None


def remember(redis: Redis, digest: str, text: str, *, ttl_s: float) -> None:
    """Store an entry for so many seconds."""
    with suppress(RedisError):
        redis.set(keys.key_of(redis, f"{CACHE_KEY}:{digest}"), text, px=max(1, round(ttl_s * 1000)))
