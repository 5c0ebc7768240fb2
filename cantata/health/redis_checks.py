"""Checks of the Redis that stores the runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cantata.health.facts import RedisFacts, Unavailable
from cantata.health.report import Check, degraded, failing, ok
from cantata.text_format import duration

SLOW_MS = 200.0  # a longer round trip slows every step; usual is below 1
HIGH, CRITICAL = 0.8, 0.95  # of the capacity
LAG_S = 10  # a replica that is further behind loses that much if it takes over
UNITS = ("B", "kB", "MB", "GB", "TB")

Info = Mapping[str, Any]


def check_redis(facts: RedisFacts | Unavailable) -> list[Check]:
    """Return checks of Redis itself, and of the disk, memory and replicas of each node."""
    if isinstance(facts, Unavailable):
        return [failing("Redis", facts.reason)]
    checks = [_server(facts)]
    for node in facts.nodes:
        suffix = f" {node.address}" if len(facts.nodes) > 1 else ""
        checks += [_disk(f"disk{suffix}", node.info), _memory(f"memory{suffix}", node.info), *_replicas(f"replicas{suffix}", node.info)]
    return checks


def _server(facts: RedisFacts) -> Check:
    address = facts.nodes[0].address if len(facts.nodes) == 1 else f"{len(facts.nodes)} nodes"
    first = facts.nodes[0].info
    up = duration(1000 * float(first.get("uptime_in_seconds", 0)))
    message = f"{_version(first)} at {address}, up {up}, answers in {facts.answer_ms:.1f} ms"
    if facts.write_error:
        return failing("Redis", f"{message}, but refuses writes: {facts.write_error}")
    if facts.answer_ms > SLOW_MS:
        return degraded("Redis", f"{message}, which slows every step", "check for slow commands, swapping and network latency")
    for node in facts.nodes:
        clients, limit = int(node.info.get("connected_clients", 0)), int(node.info.get("maxclients", 0))
        if limit and clients > HIGH * limit:
            return degraded(
                "Redis", f"{message}; {clients:,} of the {limit:,} connections of {node.address} are in use", "raise its maxclients"
            )
    return ok("Redis", message)


def _disk(name: str, info: Info) -> Check:
    if not info.get("aof_enabled"):
        return degraded(name, "the AOF is off: open runs are lost if Redis restarts", "set appendonly yes")
    if info.get("aof_last_write_status", "ok") != "ok":
        return failing(
            name, "the AOF cannot be written, so writes are refused and runs wait", "free space on the disk that Redis writes to"
        )
    message = f"AOF, {size(info.get('aof_current_size', 0))}"
    for field, operation in (("aof_last_bgrewrite_status", "AOF rewrite"), ("rdb_last_bgsave_status", "RDB snapshot")):
        if info.get(field, "ok") != "ok":
            return degraded(name, f"{message}; the last {operation} failed", "check the log of Redis and the free space on its disk")
    return ok(name, message)


def _memory(name: str, info: Info) -> Check:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    capacity = limit or int(info.get("total_system_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    message = f"{size(used)} of {size(capacity)}" if capacity else size(used)
    message += "" if limit else ", without maxmemory"
    if limit and policy != "noeviction":
        message = f"{message}; when it is full, finished runs are evicted early (maxmemory-policy {policy})"
        return degraded(name, message, "set maxmemory-policy noeviction")
    if capacity and used > HIGH * capacity:
        action = "raise its maxmemory, or shorten the retention of runs" if limit else "give it more memory, and set maxmemory"
        check = failing if used > CRITICAL * capacity else degraded
        return check(name, f"{message}; when it is full, writes are refused and runs wait", action)
    return ok(name, message)


def _replicas(name: str, info: Info) -> list[Check]:
    count = int(info.get("connected_slaves", 0))
    if not count:
        return []
    replicas = [found for number in range(count) if isinstance(found := info.get(f"slave{number}"), Mapping)]
    behind = [f"{each['ip']}:{each['port']}" for each in replicas if each["state"] != "online" or int(each["lag"]) > LAG_S]
    if behind:
        message = f"{', '.join(behind)} of {count} lag behind: writes that they lack are lost if one of them takes over"
        return [degraded(name, message, "check their logs, and the network between")]
    return [ok(name, f"{count} in sync")]


def _version(info: Info) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits."""
    power = min(int(math.log(max(count, 1), 1000)), len(UNITS) - 1)
    return f"{count / 1000**power:.{1 if power else 0}f} {UNITS[power]}"
