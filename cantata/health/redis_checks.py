"""What is said of the Redis that keeps the runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cantata.health.facts import Missing, Store
from cantata.health.report import Line, green, red, yellow
from cantata.text_format import duration

SLOW_MS = 200.0  # an answer that takes longer slows every step; usual is below 1
NEARLY, ALMOST = 0.8, 0.95  # of what there is: worth a look, and about to fail
LAG_S = 10  # a replica that is further behind loses that much if it takes over
UNITS = ("B", "kB", "MB", "GB", "TB")

Info = Mapping[str, Any]


def of_store(store: Store | Missing) -> list[Line]:
    """A line for Redis itself; for its disk, its memory and its replicas, if it has any; in a cluster, for those of each node."""
    if isinstance(store, Missing):
        return [red("Redis", store.why)]
    lines = [_of_answers(store)]
    for node in store.nodes:
        name = f" {node.place}" if len(store.nodes) > 1 else ""
        lines += [_of_disk(f"disk{name}", node.info), _of_memory(f"memory{name}", node.info), *_of_replicas(f"replicas{name}", node.info)]
    return lines


def _of_answers(store: Store) -> Line:
    place = store.nodes[0].place if len(store.nodes) == 1 else f"{len(store.nodes)} nodes"
    first = store.nodes[0].info
    up = duration(1000 * float(first.get("uptime_in_seconds", 0)))
    said = f"{_version(first)} at {place}, up {up}, answers in {store.answer_ms:.1f} ms"
    if store.refusal:
        return red("Redis", f"{said}, but takes no writes: {store.refusal}")
    if store.answer_ms > SLOW_MS:
        return yellow("Redis", f"{said}, which slows every step", "look for slow commands, swapping, or a far network")
    for node in store.nodes:
        clients, most = int(node.info.get("connected_clients", 0)), int(node.info.get("maxclients", 0))
        if most and clients > NEARLY * most:
            return yellow("Redis", f"{said}; {clients:,} of the {most:,} connections of {node.place} are taken", "raise its maxclients")
    return green("Redis", said)


def _of_disk(matter: str, info: Info) -> Line:
    if not info.get("aof_enabled"):
        return yellow(matter, "no AOF is written: runs under way are lost if it restarts", "set appendonly yes")
    if info.get("aof_last_write_status", "ok") != "ok":
        return red(matter, "the AOF cannot be written, so writes are refused and runs wait", "free the disk that Redis writes to")
    written = f"AOF, {size(info.get('aof_current_size', 0))}"
    for name, what in (("aof_last_bgrewrite_status", "shortened"), ("rdb_last_bgsave_status", "saved as a snapshot")):
        if info.get(name, "ok") != "ok":
            said = f"{written}; the last time it was to be {what}, that failed"
            return yellow(matter, said, "look at the log of Redis, and at the room on its disk")
    return green(matter, written)


def _of_memory(matter: str, info: Info) -> Line:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    whole = limit or int(info.get("total_system_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    said = f"{size(used)} of {size(whole)}" if whole else size(used)
    said += "" if limit else ", without maxmemory"
    if limit and policy != "noeviction":
        said = f"{said}; when it is full, finished runs vanish early (maxmemory-policy {policy})"
        return yellow(matter, said, "set maxmemory-policy noeviction")
    if whole and used > NEARLY * whole:
        todo = "raise its maxmemory, or shorten the retention of runs" if limit else "give it more memory, and set maxmemory"
        full = f"{said}; when it is full, writes are refused and runs wait"
        return red(matter, full, todo) if used > ALMOST * whole else yellow(matter, full, todo)
    return green(matter, said)


def _of_replicas(matter: str, info: Info) -> list[Line]:
    count = int(info.get("connected_slaves", 0))
    if not count:
        return []
    replicas = [found for number in range(count) if isinstance(found := info.get(f"slave{number}"), Mapping)]
    behind = [f"{each['ip']}:{each['port']}" for each in replicas if each["state"] != "online" or int(each["lag"]) > LAG_S]
    if behind:
        said = f"{', '.join(behind)} of {count} lag behind: what they miss is lost if one of them takes over"
        return [yellow(matter, said, "look at their logs, and at the network between")]
    return [green(matter, f"{count} follow{'s' if count == 1 else ''}")]


def _version(info: Info) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    power = min(int(math.log(max(count, 1), 1000)), len(UNITS) - 1)
    return f"{count / 1000**power:.{1 if power else 0}f} {UNITS[power]}"
