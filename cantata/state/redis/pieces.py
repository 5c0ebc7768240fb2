"""Reads of large hashes and streams in pieces, each of which occupies Redis for a fraction of a millisecond.

Others may write between two pieces. A field that exists all the time is read; one that is added or deleted meanwhile may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from redis import Redis

PIECE = 500  # short fields, such as states and names
LARGE_PIECE = 50  # fields of up to 32 kB, such as outputs
EVENTS_PIECE = 500

WithRetries = Callable[[Callable[[], Any]], Any]
"""As `Ledger.with_retries`."""


def scan(redis: Redis, with_retries: WithRetries, key: str, *, match: str | None = None, limit: int | None = None) -> dict[str, str]:
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
        part = cast("list[tuple[str, dict[str, str]]]", with_retries(partial(redis.xrange, key, min=after, count=EVENTS_PIECE)))
        yield from (entry for _, entry in part)
        if len(part) < EVENTS_PIECE:
            return
        after = f"({part[-1][0]}"
