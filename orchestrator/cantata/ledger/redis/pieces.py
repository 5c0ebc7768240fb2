"""Reads of many keys in one round trip, and of large hashes and streams in pieces that occupy Redis for a fraction of a millisecond each.

Others may write between two pieces. A field that exists all the time is read; one that is added or deleted meanwhile may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from redis import Redis

from cantata.ledger.redis.keys import SHARDS, shard_key

PIECE = 500  # short fields, such as states and names
LARGE_PIECE = 50  # fields of up to 32 kB, such as outputs
EVENTS_PIECE = 500

Entry = tuple[str, dict[str, str]]
"""An entry of a stream: its id, its fields."""
Item = TypeVar("Item")
WithRetries = Callable[[Callable[[], Any]], Any]
"""As `Ledger.with_retries`."""


def ask_each(redis: Redis, items: Iterable[Item], ask: Callable[[Any, Item], object]) -> list[Any]:
    """Return the replies to the commands that `ask` adds to a pipeline for each item, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for item in items:
            ask(pipe, item)
        return pipe.execute()


def ask_shards(redis: Redis, ask: Callable[[Any, str], object]) -> list[Any]:
    """Return the replies to the commands that `ask` adds to a pipeline for the prefix of each shard, in one round trip."""
    return ask_each(redis, (shard_key(redis, shard) for shard in range(SHARDS)), ask)


def scan(
    redis: Redis, with_retries: WithRetries, key: str, *, match: str | None = None, limit: int | None = None
) -> dict[str, str]:
    """Return all fields of a hash, or those that match a pattern. With `limit`, stop after so many, with up to a piece more."""
    found: dict[str, str] = {}
    cursor = 0
    while True:
        cursor, part = with_retries(partial(redis.hscan, key, cursor, match=match, count=PIECE))
        found |= part
        if not cursor or (limit is not None and len(found) >= limit):
            return found


def fields(redis: Redis, with_retries: WithRetries, key: str, names: Sequence[str], piece: int) -> list[str | None]:
    """Return fields of a hash, in order."""
    found: list[str | None] = []
    for start in range(0, len(names), piece):
        found += cast("list[str | None]", with_retries(partial(redis.hmget, key, list(names[start : start + piece]))))
    return found


def events(redis: Redis, with_retries: WithRetries, key: str) -> Iterator[dict[str, str]]:
    """Yield the entries of a stream, oldest first."""
    after = "-"
    while True:
        part = cast(
            "list[tuple[str, dict[str, str]]]", with_retries(partial(redis.xrange, key, min=after, count=EVENTS_PIECE))
        )
        yield from (entry for _, entry in part)
        if len(part) < EVENTS_PIECE:
            return
        after = f"({part[-1][0]}"


def streams_in(reply: Any) -> dict[str, list[Entry]]:
    """Return the entries of each stream in a reply to XREAD, which is a mapping in RESP3 and else a list."""
    return {key: batches[0] for key, batches in reply.items()} if isinstance(reply, dict) else dict(reply or ())
