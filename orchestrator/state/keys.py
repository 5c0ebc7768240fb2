"""Names the keys of runs; `lua/lib.lua` lists them."""

from __future__ import annotations

from hashlib import sha256
from zlib import crc32

SHARDS = 64  # spreads runs over the slots of a Redis Cluster; fixed, since a run's shard follows from its id


def shard_of(run_id: str) -> int:
    """The shard a run lives in."""
    return crc32(run_id.encode()) % SHARDS


def shard_key(shard: int) -> str:
    """The prefix of a shard's keys; the number is a hash tag, so all of a shard is in one slot."""
    return f"cantata:{{{shard}}}"


def run_key(run_id: str) -> str:
    """The prefix of a run's keys."""
    return f"{shard_key(shard_of(run_id))}:run:{run_id}"


def definitions_digest(text: str) -> str:
    """Return the name of definitions (JSON text) by their content."""
    return sha256(text.encode()).hexdigest()


def definitions_key(shard: int, digest: str) -> str:
    """Where a shard keeps definitions by content, for as long as a run needs them."""
    return f"{shard_key(shard)}:definitions:{digest}"
