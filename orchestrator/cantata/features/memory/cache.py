"""The cache of models' replies; the only module that knows its keys.

An entry may disappear at any time; if Redis is unavailable, the cache is empty.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, cast
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from cantata.errors import CantataError
from cantata.flows.definitions import Quota
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import keys

CACHE_KEY = "{cache}"
"""Strings, each a reply as JSON that lives as long as the model's `cache` says, by the sha256 of the request:

{cache}:<sha256>            of runs without a tenant
{cache}:<tenant>:<sha256>   of a tenant, whose name is percent-encoded
{cache}:*:<sha256>          of all, with `share: all`
"""


class Payer(NamedTuple):
    """The tenant whose quota counts a reply, also one for all."""

    ledger: Ledger
    tenant: str
    quota: Quota


def recall(redis: Redis, tenant: str | None, digest: str) -> str | None:
    """Return the entry of a tenant under a digest, or None; that of all for the tenant None."""
    with suppress(RedisError):
        return cast("str | None", redis.get(keys.key_of(redis, f"{CACHE_KEY}:{_name(tenant, digest)}")))
    return None


def remember(
    redis: Redis, tenant: str | None, digest: str, text: str, *, ttl_s: float, payer: Payer | None = None
) -> None:
    """Store an entry of a tenant, or of all for None, for so many seconds, if the quota of `payer` allows it."""
    name, ttl_ms = _name(tenant, digest), max(1, round(ttl_s * 1000))
    key = keys.key_of(redis, f"{CACHE_KEY}:{name}")
    with suppress(RedisError, CantataError):  # such as a quota that is used up
        if payer is None:
            redis.set(key, text, px=ttl_ms)
            return
        size, caller = len(text.encode()), payer.ledger.caller
        with payer.ledger.quotas.store(payer.tenant, payer.quota, size):
            caller.call_shard("ledger/charge", keys.shard_of(digest), payer.tenant, f"reply:{name}", size, ttl_ms)
            redis.set(key, text, px=ttl_ms)


def _name(tenant: str | None, digest: str) -> str:
    owner = "*:" if tenant is None else f"{quote(tenant, safe='')}:" if tenant else ""
    return f"{owner}{digest}"
