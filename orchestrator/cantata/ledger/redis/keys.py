"""Names of the keys of a namespace; `ledger/run.lua` lists those of runs.

A client of Redis belongs to one namespace, which `connect` sets, so several installations can share one Redis.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from itertools import count, islice
from urllib.parse import quote
from zlib import crc32

from cantata.settings import DEFAULT_NAMESPACE

SHARDS = 64  # spreads runs over the slots of a Redis Cluster; fixed, since a run's shard follows from its id

RUN_PARTS = (
    "",
    ":steps",
    ":state",
    ":edges",
    ":out",
    ":info",
    ":given",
    ":names",
    ":expansions",
    ":blobs",
    ":log",
    ":closed",
)
"""The keys that a run may have when it ends, except its logs, which may still get lines."""


def namespace_of(redis: object) -> str:
    """Return the namespace whose keys this client reads and writes."""
    return str(getattr(redis, "namespace", DEFAULT_NAMESPACE))


def key_of(redis: object, name: str) -> str:
    """Return the full name of a key."""
    return f"{namespace_of(redis)}:{name}"


def shard_of(run_id: str) -> int:
    """Return the shard of a run."""
    return crc32(run_id.encode()) % SHARDS


def id_in_shard(shard: int, first: str) -> str:
    """Return a run id in a shard, with `first` as its prefix."""
    return next(run_id for number in count() if shard_of(run_id := f"{first}{number:x}") == shard)


def webhook_runs_of(run_id: str, last: int, most: int = 100) -> tuple[str, ...]:
    """Return the ids of the runs that post the events of a run to webhooks, by the last number that the ledger tried in them."""
    numbered = (f"{run_id}w{number:x}" for number in range(1, last + 1))
    return tuple(islice((each for each in numbered if shard_of(each) == shard_of(run_id)), most))


def shard_key(redis: object, shard: int) -> str:
    """Return the prefix of a shard's keys; the number is a hash tag, so all of a shard is in one slot."""
    return key_of(redis, f"{{{shard}}}")


def memory_key(redis: object, tenant: str) -> str:
    """Return the prefix of the keys of a tenant's memories, all of which are in one slot."""
    return key_of(redis, f"{{memory:{quote(tenant, safe='')}}}")


def run_key(redis: object, run_id: str) -> str:
    """Return the prefix of a run's keys."""
    return f"{shard_key(redis, shard_of(run_id))}:run:{run_id}"


@lru_cache(maxsize=4)  # a process submits with the same large texts again and again
def definitions_digest(text: str) -> str:
    """Return the name of definitions (JSON text) by their content."""
    return sha256(text.encode()).hexdigest()


def definitions_key(redis: object, shard: int, digest: str) -> str:
    """Return the key of definitions in a shard, which are stored by content for as long as a run needs them."""
    return f"{shard_key(redis, shard)}:definitions:{digest}"
