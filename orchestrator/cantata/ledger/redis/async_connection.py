"""Connections to Redis for coroutines."""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from cantata.ledger.redis.address import parse, redis_url
from cantata.ledger.redis.cluster import AsyncCluster
from cantata.ledger.redis.connection import sentinel_options
from cantata.settings import namespace_named

__all__ = ["Redis", "connect_async"]

CONNECTIONS = (
    4  # one reads events, one waits for those of idle runs, one reads followed batches, one checks request rates
)


class _MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master that Sentinels report; callers wait for a free one."""


def connect_async(url: str, *, namespace: str | None = None) -> Redis:
    """Return a client for coroutines, with the arguments of `connect` and without retries. A few connections serve all coroutines."""
    client = _connect(url)
    client.namespace = namespace_named(namespace)  # type: ignore[attr-defined]  # read by `keys`
    return client


def _connect(url: str) -> Redis:
    address = parse(url)
    options: dict[str, Any] = {
        "decode_responses": True, "client_name": "cantata-gateway", "socket_connect_timeout": 5,
        "socket_timeout": 30, "retry": Retry(NoBackoff(), 0),
    }  # fmt: skip
    if address.kind == "cluster":
        # One retry, for which it looks up the nodes again.
        options |= {"max_connections": 1000, "retry": Retry(NoBackoff(), 1), **address.options}
        nodes = [ClusterNode(host, port) for host, port in address.places]
        return cast(Redis, AsyncCluster(startup_nodes=nodes, require_full_coverage=False, ssl=address.tls, **options))
    options |= {"max_connections": CONNECTIONS, "timeout": None}
    if address.kind == "sentinel":
        sentinels = Sentinel(
            list(address.places), sentinel_kwargs={**sentinel_options(address), "retry": options["retry"]}
        )  # type: ignore[no-untyped-call]  # untyped in redis-py
        pool = _MasterPool(address.master, sentinels, ssl=address.tls, **{**options, **address.options})  # type: ignore[no-untyped-call]  # as above
        return Redis.from_pool(pool)
    return Redis.from_pool(BlockingConnectionPool.from_url(redis_url(url), **options))
