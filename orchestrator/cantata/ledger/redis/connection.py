"""Connections to Redis, and a check that it is fit to store runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from redis import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import BusyLoadingError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from cantata.errors import UnavailableError
from cantata.ledger.redis.address import Address, parse, redis_url, shown, without_password
from cantata.ledger.redis.cluster import Cluster, redis_error
from cantata.ledger.redis.redis_errors import reason
from cantata.settings import namespace_named

__all__ = [
    "Redis", "RedisFailure", "RedisRefusal", "check", "connect", "master_connection", "reason", "redis_url",
    "sentinel_options", "sentinel_pool", "shown", "without_password",
]  # fmt: skip

UnixDomainSocketConnection.port = 0  # type: ignore[attr-defined]  # redis-py 8.1 reads it from a broken connection, and fails if there is none

RedisFailure = RedisError
"""The base of all errors of Redis, for callers that only log them."""

RedisRefusal = ResponseError
"""The error reply of Redis to a command."""

OLDEST_REDIS = 7  # XADD with `0-*` ids
CHILD_PATIENCE_S = 30.0  # a worker's child that starts while a cluster is unavailable waits for it
RETRY_INTERVAL_S = 0.5
SENTINEL_TIMES: Mapping[str, Any] = {"socket_connect_timeout": 0.5, "socket_timeout": 1.0}
"""Short timeouts: a Sentinel on a lost host must not delay the call of the next."""


def connect(url: str, *, owner: str = "", single: bool = False, namespace: str | None = None) -> Redis:
    """Return a client for this URL. It does not retry, since only the ledger knows which calls may be repeated.

    It reads and writes the keys of `namespace`, or of CANTATA_NAMESPACE. The connections of an `owner` of leases are named after it.

    With `single` it keeps one connection instead of a pool, for a process that does one thing at a time: 15 % less work a call (py-spy);
    it has a pool all the same if it starts while Redis is unavailable. The nodes of a cluster are looked up at once; with `single`, for up
    to CHILD_PATIENCE_S. Raises ConfigError if the URL or the namespace is invalid, UnavailableError if no node of a cluster answers.
    """
    space = namespace_named(namespace)
    client = _connect(url, name=f"{space}:{owner}" if owner else "cantata", single=single)
    client.namespace = space  # type: ignore[attr-defined]  # read by `keys`
    return client


def _connect(url: str, *, name: str, single: bool) -> Redis:
    address = parse(url)
    # Without PINGs of redis-py: a Redis that loads its data, or cannot write its disk, refuses them, and still answers what is read.
    options = {
        "decode_responses": True, "client_name": name, "socket_connect_timeout": 5, "socket_timeout": 30, "retry": _never_again(),
    }  # fmt: skip
    if address.kind == "cluster":
        return _connect_cluster(
            address, {**options, **address.options}, url, patience_s=CHILD_PATIENCE_S if single else 0.0
        )
    if address.kind == "sentinel":
        pool: ConnectionPool = sentinel_pool(
            address, {**options, **address.options, "connection_class": master_connection(address)}
        )
    else:
        pool = ConnectionPool.from_url(redis_url(url), **options)
    if single:
        with suppress(RedisError):
            client = Redis(connection_pool=pool, single_connection_client=True)
            client.auto_close_connection_pool = True
            return client
    return Redis.from_pool(pool)


class _AsksSentinels:
    """Looks up the master at the Sentinels whenever it reconnects; redis-py's own does so only when a pool hands it out."""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._sock:  # type: ignore[attr-defined]  # of a connection
            self.connect()  # type: ignore[attr-defined]  # as above
        super().send_packed_command(command, check_health)  # type: ignore[misc]  # as above


class _MasterConnection(_AsksSentinels, SentinelManagedConnection):
    pass


class _MasterConnectionTls(_AsksSentinels, SentinelManagedSSLConnection):
    pass


def sentinel_pool(address: Address, options: Mapping[str, Any]) -> SentinelConnectionPool:
    """Return a pool of connections to the master, which is looked up at the Sentinels for each new connection."""
    sentinels = Sentinel(list(address.places), sentinel_kwargs={**sentinel_options(address), "retry": _never_again()})  # type: ignore[no-untyped-call]  # untyped in redis-py
    return SentinelConnectionPool(address.master, sentinels, **options)  # type: ignore[no-untyped-call]  # as above


def sentinel_options(address: Address) -> dict[str, Any]:
    """Return the options of connections to the Sentinels."""
    return {**SENTINEL_TIMES, **address.sentinel_options} | ({"ssl": True} if address.tls else {})


def master_connection(address: Address) -> type[SentinelManagedConnection]:
    """Return the class of connections to the master."""
    return _MasterConnectionTls if address.tls else _MasterConnection


def _connect_cluster(address: Address, options: Mapping[str, Any], url: str, *, patience_s: float) -> Redis:
    nodes = [ClusterNode(*place) for place in address.places]  # type: ignore[no-untyped-call]  # untyped in redis-py
    give_up = time.monotonic() + patience_s
    while True:
        try:  # without full coverage the nodes themselves report uncovered slots, and calls are retried
            return cast(Redis, Cluster(startup_nodes=nodes, require_full_coverage=False, ssl=address.tls, **options))
        except (RedisError, RedisClusterException) as error:
            failure = redis_error(error) if isinstance(error, RedisClusterException) else error
        if time.monotonic() > give_up:
            raise UnavailableError(reason(failure, shown(url))) from failure
        time.sleep(RETRY_INTERVAL_S)


def _never_again() -> Retry:
    return Retry(NoBackoff(), 0)


def check(client: Redis, *, url: str = "") -> tuple[str, ...]:
    """Check the settings of a Redis, or of each node of a cluster that takes writes; return warnings.

    Raises UnavailableError if it cannot be reached, is a replica, is too old, or may evict keys of open runs.
    """
    place = shown(url)
    try:
        infos = client.each_node("INFO") if isinstance(client, Cluster) else {place: client.info()}
    except RedisError as error:
        raise UnavailableError(reason(error, place)) from error
    warnings: list[str] = []
    for node, info in infos.items():
        warnings += _server_warnings(
            info, f"Redis at {node}" if node else "Redis", is_alone=not isinstance(client, Cluster)
        )
    return tuple(warnings)


def loaded(url: str, failure: RedisError) -> str:
    """Return how much of its data a Redis that is loading has loaded; empty for another failure, or if it does not tell."""
    if not isinstance(failure, BusyLoadingError):
        return ""
    with suppress(RedisError, KeyError), connect(url) as redis:
        info = redis.info("persistence")  # answered meanwhile
        percent, left_s = float(info["loading_loaded_perc"]), int(info["loading_eta_seconds"])
        return f" ({percent:.0f} % loaded" + (f", about {left_s} s left)" if left_s > 0 else ")")
    return ""


def _server_warnings(info: Mapping[str, Any], redis: str, *, is_alone: bool) -> list[str]:
    """Return warnings about a server that can be used. Raises UnavailableError for one that cannot."""
    if int(str(info["redis_version"]).split(".")[0]) < OLDEST_REDIS:
        raise UnavailableError(f"{redis} is version {info['redis_version']}; {OLDEST_REDIS}.0 or newer is needed")
    if is_alone and info.get("cluster_enabled"):
        raise UnavailableError(f"{redis} is a node of a Redis Cluster; name it with redis+cluster:// in REDIS_URL")
    if info["role"] != "master":
        raise UnavailableError(f"{redis} is a read-only replica; name its master in REDIS_URL")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        raise UnavailableError(
            f"{redis} evicts any key when full (maxmemory-policy {policy}), so runs would be lost; set maxmemory-policy noeviction"
        )
    warnings = []
    if policy != "noeviction" and int(info.get("maxmemory", 0)):
        warnings.append(
            f"{redis} evicts finished runs when full (maxmemory-policy {policy}); set maxmemory-policy noeviction"
        )
    if not int(info.get("aof_enabled", 0)):
        warnings.append(f"{redis} writes no AOF: runs under way are lost if it restarts; set appendonly yes")
    return warnings
