"""The cache of models' replies; the only module that knows its keys.

An entry may disappear at any time; if Redis is unavailable, the cache is empty.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from cantata.state.redis import keys

CACHE_KEY = "{cache}"
"""Strings, each a reply as JSON that lives as long as the model's `cache` says, by the sha256 of the request:

{cache}:<sha256>            of runs without a tenant
{cache}:<tenant>:<sha256>   of a tenant, whose name is percent-encoded
{cache}:*:<sha256>          of all, with `share: all`
"""


def recall(redis: Redis, tenant: str | None, digest: str) -> str | None:
    """Return the entry of a tenant under a digest, or None; that of all for the tenant None."""
    with suppress(RedisError):
        return cast("str | None", redis.get(_key(redis, tenant, digest)))
    return None


def remember(redis: Redis, tenant: str | None, digest: str, text: str, *, ttl_s: float) -> None:
    """Store an entry of a tenant, or of all for None, for so many seconds."""
    with suppress(RedisError):
        redis.set(_key(redis, tenant, digest), text, px=max(1, round(ttl_s * 1000)))


def _key(redis: Redis, tenant: str | None, digest: str) -> str:
    owner = "*:" if tenant is None else f"{quote(tenant, safe='')}:" if tenant else ""
    return keys.key_of(redis, f"{CACHE_KEY}:{owner}{digest}")
