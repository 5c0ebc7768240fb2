"""Clients of a Redis Cluster that raise the errors of a single Redis, so that callers retry both in the same way."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.cluster import ClusterPipeline as AsyncClusterPipeline
from redis.cluster import ClusterPipeline, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError, SlotNotCoveredError

from cantata.ledger.redis.keys import key_of, namespace_of

TIME = "local time = redis.call('TIME') return {tonumber(time[1]), tonumber(time[2])}"
CLOCK_KEY = "clock"  # the time is read from the node of this key: the clocks of two nodes may differ


class Cluster(RedisCluster):
    """Calls the node that has the key. The keys of a script or a transaction lie in one slot; other pipelines may span several."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Call a node, or several."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # untyped in redis-py
        except RedisClusterException as error:
            raise redis_error(error) from None

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> ClusterPipeline:
        """Return a pipeline: several calls in one round trip to each node."""
        callbacks = dict(self.cluster_response_callbacks)
        if transaction:  # redis-py leaves their replies as they are
            node = self.get_default_node()  # type: ignore[no-untyped-call]  # as above
            own = node.redis_connection.response_callbacks
            callbacks |= {command: own[command] for command in ("XRANGE", "XREVRANGE")}
        pipe = _Pipeline(
            nodes_manager=self.nodes_manager,
            commands_parser=self.commands_parser,
            result_callbacks=self.result_callbacks,
            cluster_response_callbacks=callbacks,
            reinitialize_steps=self.reinitialize_steps,
            retry=self.retry,
            lock=self._lock,
            transaction=transaction,
            event_dispatcher=self._event_dispatcher,
        )
        pipe.namespace = namespace_of(self)
        return pipe

    def time(self, **options: Any) -> Any:
        """Return the time of one node, the same for all callers."""
        node = self.get_node_from_key(key_of(self, CLOCK_KEY))  # type: ignore[no-untyped-call]  # as above
        return super().time(target_nodes=node, **options)

    def node_of(self, key: str) -> str:
        """Return the address of the node that has a key; "" if it is unknown."""
        try:
            return str(self.get_node_from_key(key).name)  # type: ignore[no-untyped-call]  # as above
        except RedisClusterException:
            return ""

    def ask_node_of(self, key: str, *command: str) -> Any:
        """Execute a command without keys on the node that has a key."""
        return self.execute_command(*command, target_nodes=self.get_node_from_key(key))  # type: ignore[no-untyped-call]  # as above

    def each_node(self, *command: str) -> dict[str, Any]:
        """Execute a command without keys on each node that takes writes; return the replies by address."""
        nodes = self.get_primaries()  # type: ignore[no-untyped-call]  # as above
        return {node.name: self.execute_command(*command, target_nodes=node) for node in nodes}


class _Pipeline(ClusterPipeline):
    """A pipeline with two commands that redis-py's cannot route by key."""

    namespace: str

    def evalsha(self, sha: Any, numkeys: int, *keys_and_args: Any) -> Any:
        node = self.get_node_from_key(keys_and_args[0])  # type: ignore[no-untyped-call]  # as above; else the default node, which may be unavailable, is called
        return self.execute_command("EVALSHA", sha, numkeys, *keys_and_args, target_nodes=node)  # type: ignore[no-untyped-call]  # as above

    def time(self, **_: Any) -> Any:
        """Read the time of the node of the first call of this pipeline."""
        before = self._execution_strategy.command_queue
        return self.execute_command("EVAL", TIME, 1, before[0].args[1] if before else key_of(self, CLOCK_KEY))  # type: ignore[no-untyped-call]  # as above

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        try:
            return super().execute(raise_on_error)
        except RedisClusterException as error:
            raise redis_error(error) from None


class AsyncCluster(AsyncRedisCluster):
    """The same for coroutines."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Call a node, or several."""
        try:
            return await super().execute_command(*args, **options)
        except RedisClusterException as error:
            raise redis_error(error) from None

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> AsyncClusterPipeline:
        """Return a pipeline: several calls in one round trip to each node."""
        return _AsyncPipeline(self, transaction)  # type: ignore[abstract]  # it is concrete once it is made


class _AsyncPipeline(AsyncClusterPipeline):
    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        try:
            return await super().execute(raise_on_error, allow_redirections)
        except RedisClusterException as error:
            raise redis_error(error) from None


def redis_error(error: RedisClusterException) -> Exception:
    """Return the node's error behind one of the cluster's client, a connection error if no node is reached, else the error itself."""
    behind = error.__cause__ or error.__context__
    if isinstance(behind, RedisClusterException):
        return redis_error(behind)
    if isinstance(behind, RedisError):
        return behind
    return (
        RedisConnectionError(str(error))
        if isinstance(error, SlotNotCoveredError) or "cannot be connected" in str(error)
        else error
    )


def memory_of(redis: Redis) -> list[dict[str, Any]]:
    """Return the memory section of INFO, for each Redis that takes writes."""
    return list(redis.each_node("INFO", "memory").values()) if isinstance(redis, Cluster) else [redis.info("memory")]


def refused_writes(redis: Redis) -> int:
    """Return how many writes Redis refused since it started, being full or unable to write its disk; 0 if it does not count them."""
    sections = (
        redis.each_node("INFO", "errorstats").values() if isinstance(redis, Cluster) else [redis.info("errorstats")]
    )
    counts = (section.get(f"errorstat_{name}") for section in sections for name in ("OOM", "MISCONF"))
    return sum(int(each["count"]) for each in counts if isinstance(each, dict))
