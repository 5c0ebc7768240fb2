"""Batches followed by any number of readers: one task reads each followed batch, whoever follows it.

An idle reader costs memory alone. A slow one misses states that were replaced meanwhile, never the newest: nothing is queued for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import structlog
from redis.exceptions import RedisError

from cantata.errors import CantataError
from cantata.features.batches.batch_store import BatchInfo, batch_of, unknown
from cantata.ledger.redis import outages
from cantata.ledger.redis.async_connection import Redis
from cantata.ledger.redis.records import apart
from cantata.ledger.runs.streams import StreamsEnded

EVERY_S = 0.5  # between looks at a followed batch
AT_ONCE = 50  # batches that one round trip reads: about half a millisecond of Redis
PAUSE_S = 0.02  # between round trips, so that readers of very many batches take a tenth of Redis at most
WOKEN_AT_ONCE = 20  # readers, before other work of the event loop gets a turn

log = structlog.get_logger(__name__)


class BatchUpdate(NamedTuple):
    """A batch as it was read, and its JSON text, which all its readers share."""

    batch: BatchInfo
    text: str


class BatchFollower:
    """One reader of a batch."""

    def __init__(self, known: BatchInfo) -> None:
        self._known = known
        self._update: BatchUpdate | None = None
        self._fault: CantataError | None = None
        self._arrived = asyncio.Event()

    def give(self, update: BatchUpdate) -> None:
        """Replace the state that the reader gets next."""
        if update.batch != self._known:
            self._update = update
            self._arrived.set()

    def end(self, fault: CantataError) -> None:
        """Let the reader get this error."""
        self._fault = self._fault or fault
        self._arrived.set()

    async def changed(self, timeout_s: float) -> BatchUpdate | None:
        """Return the newest state as soon as it is another than the last; None if `timeout_s` passed first.

        Raises ConfigError ('unknown_batch') if the batch is gone, StreamsEnded if this process is about to end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        self._arrived.clear()
        update, self._update = self._update, None
        if update is not None:
            self._known = update.batch
        elif self._fault:
            raise self._fault
        return update


class _Followed:
    """A batch with its readers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.followers: list[BatchFollower] = []
        self.parts: list[Any] | None = None
        self.update: BatchUpdate | None = None


class BatchStreams:
    """Reads batches for all followers. `run` is its task; everything else is called in the same event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._followed: dict[str, _Followed] = {}
        self._work = asyncio.Event()
        self._ending = asyncio.Event()

    @contextmanager
    def follow(self, key: str, known: BatchInfo) -> Iterator[BatchFollower]:
        """Follow a batch by its key, from a known state on."""
        follower = BatchFollower(known)
        if self._ending.is_set():
            follower.end(_ended())
        followed = self._followed.setdefault(key, _Followed(known.name))
        followed.followers.append(follower)
        if followed.update:
            follower.give(followed.update)
        self._work.set()
        try:
            yield follower
        finally:
            followed.followers.remove(follower)
            if not followed.followers and self._followed.get(key) is followed:
                del self._followed[key]

    async def run(self) -> None:
        """Read until `end` is called. While Redis is unavailable all followers wait."""
        while not self._ending.is_set():
            self._work.clear()
            if not self._followed:
                await self._work.wait()
                continue
            try:
                keys = [*self._followed]
                for start in range(0, len(keys), AT_ONCE):
                    await self._read(keys[start : start + AT_ONCE])
                    await asyncio.sleep(PAUSE_S)
            except (RedisError, OSError) as error:
                outages.warn(log, "batch_read_failed", error, followed=len(self._followed))
            except Exception:  # the edge of a task: without it no follower would get anything any more
                log.exception("batch_read_crashed")
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._ending.wait()

    def end(self) -> None:
        """Stop reading: all followers get StreamsEnded."""
        self._ending.set()
        self._work.set()
        for followed in self._followed.values():
            for follower in followed.followers:
                follower.end(_ended())

    async def _read(self, keys: Sequence[str]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
                pipe.hgetall(f"{key}:prices")
            replies = apart(await pipe.execute(raise_on_error=False))
        for key, *parts in zip(keys, replies[::2], replies[1::2], strict=True):
            followed = self._followed.get(key)
            if followed is None or followed.parts == parts:
                continue
            followed.parts = parts
            await _give(followed, *parts)


async def _give(followed: _Followed, fields: Any, prices: Any) -> None:
    """Hand out a state; if it cannot be read, its readers get the error, and those of other batches notice nothing."""
    fault: CantataError | None = None
    if not fields:
        fault = unknown(followed.name)
    elif (batch := batch_of(followed.name, fields, prices, remedy="cancel it")).unreadable:
        log.warning("batch_unreadable", batch=followed.name, error=batch.unreadable)
        fault = CantataError(f"the record of batch {followed.name!r}: {batch.unreadable}")
    else:
        followed.update = BatchUpdate(batch, batch.model_dump_json())
    for number, follower in enumerate([*followed.followers], 1):
        if fault:
            follower.end(fault)
        elif followed.update:
            follower.give(followed.update)
        if number % WOKEN_AT_ONCE == 0:
            await asyncio.sleep(0)


def _ended() -> StreamsEnded:
    return StreamsEnded("batches are no longer followed, since this process ends; they go on")
