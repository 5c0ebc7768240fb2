"""Redis event streams of many runs, followed in one event loop and on two connections.

One task reads ahead for all followers, each at its own offset. It does not read for a slow follower until its buffer has capacity, so no
follower buffers more than a few hundred events; nothing is lost by that, since the events stay in Redis. A second task waits for events of
idle streams, with one call that takes seconds: so they cost nothing while the others are read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import cast

import structlog
from redis.exceptions import RedisError

from cantata.errors import CantataError, UnknownRunError
from cantata.flows.events import RunEvent
from cantata.ledger.redis import outages
from cantata.ledger.redis.async_connection import Redis, connect_async
from cantata.ledger.redis.cluster import AsyncCluster
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import Entry, streams_in
from cantata.ledger.runs.event_log import event_of
from cantata.ledger.scripts import named

__all__ = ["Follower", "Streams", "StreamsEnded", "connect_async"]

PAGE = 100  # entries of one run in one read
BUFFER_ENTRIES = 200  # entries that wait for one reader, before more are read for it
BLOCK_MS = 20  # how long one read waits; a follower that is added meanwhile waits as long
PAUSE_S = 0.005  # between reads that found something, so that a busy moment is read in few of them
IDLE_S = 2.0  # a stream without an event for so long is idle, from the next call for idle ones on; each of these waits as long
CHECK_INTERVAL_S = 5.0  # between checks that followed runs are still known, and still have the events that were read
RETRY_INTERVAL_S = 0.2  # while Redis is unavailable

READ = """
local ids = {unpack(ARGV, 2)}
local words = {unpack(KEYS)}
for _, id in ipairs(ids) do words[#words + 1] = id end
return redis.call('XREAD', 'COUNT', ARGV[1], 'STREAMS', unpack(words)) or {}
"""

log = structlog.get_logger(__name__)


class StreamsEnded(CantataError):
    """Events are no longer read, because the process is about to end. The run goes on."""


class Follower:
    """One reader's offset in a stream of a run, and its buffer."""

    def __init__(self, redis: Redis, run_id: str, part: str, after: int, wakeup: asyncio.Event) -> None:
        self.run_id = run_id
        self.key = f"{run_key(redis, run_id)}:{part}"
        self.after = after
        """The offset of the last entry read for it; it may not have taken all entries yet."""
        self.fault: CantataError | None = None
        self._entries: list[Entry] = []
        self._read: deque[tuple[int, str]] = deque(maxlen=BUFFER_ENTRIES)
        self._arrived = asyncio.Event()
        self._wakeup = wakeup

    @property
    def has_capacity(self) -> bool:
        """True if more entries may be read for it now."""
        return self.fault is None and len(self._entries) < BUFFER_ENTRIES

    def give(self, entries: Sequence[Entry]) -> None:
        """Add entries that were read, except those before its offset."""
        fresh = [entry for entry in entries if _offset(entry[0]) > self.after]
        if fresh:
            self.after = _offset(fresh[-1][0])
            self._entries += fresh
            self._read += map(_mark, fresh)
            self._arrived.set()

    @property
    def last(self) -> tuple[int, str] | None:
        """Return the mark of the last entry that was read for it."""
        return self._read[-1] if self._read else None

    def go_back(self, known: Sequence[Entry]) -> None:
        """Go back to the last entry that is unchanged, given the newest entries of the stream."""
        marks = set(map(_mark, known))
        self.after = max((mark[0] for mark in self._read if mark in marks), default=0)

    def end(self, fault: CantataError) -> None:
        """End the stream: its reader gets the buffered entries, then this error."""
        self.fault = self.fault or fault
        self._arrived.set()

    async def entries(self, timeout_s: float | None = None) -> list[Entry]:
        """Return the entries since the last call, as soon as there are any; none if `timeout_s` passed first.

        Raises UnknownRunError if the run is gone, StreamsEnded if this process is about to end.
        """
        if not self._entries:
            if self.fault:
                raise self.fault
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
        entries, self._entries = self._entries, []
        if not entries and self.fault:
            raise self.fault
        self._wakeup.set()
        return entries

    async def events(self, timeout_s: float | None = None) -> list[RunEvent]:
        """Return the same entries as events."""
        return [event_of(self.run_id, entry_id, fields) for entry_id, fields in await self.entries(timeout_s)]


class Streams:
    """Reads for all followers. `run` is its task; everything else is called in the same event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._followers: dict[str, list[Follower]] = {}
        self._idle: dict[str, str] = {}
        """Idle streams, which one call waits for, and the offset it reads from. One with another offset by now is read with the others."""
        self._reading: Mapping[str, str] = {}
        """The streams that are read now, except by that call."""
        self._going_back = asyncio.Lock()
        self._work = asyncio.Event()
        self._ended = False

    @contextmanager
    def follow(self, run_id: str, *, after: int = 0) -> Iterator[Follower]:
        """Follow a run's events with an offset above `after`."""
        with self._followed(Follower(self._redis, run_id, "log", after, self._work)) as follower:
            yield follower

    async def wait_closed(self, run_id: str, timeout_s: float | None = None) -> bool:
        """Wait until a run is over; return False if `timeout_s` passed first. Raises UnknownRunError."""
        with self._followed(Follower(self._redis, run_id, "closed", 0, self._work)) as follower:
            return bool(await follower.entries(timeout_s))

    @property
    def followed(self) -> int:
        """The number of streams that are followed."""
        return len(self._followers)

    async def run(self) -> None:
        """Read until `end` is called, or the task is cancelled. While Redis is away all followers wait, then go on at the same offset."""
        checked_at, idle = time.monotonic(), self._start_idle()
        try:
            while not self._is_to_end:
                self._work.clear()
                try:
                    if idle.done():
                        failed, idle = idle, self._start_idle()
                        await failed
                    self._reading = wanted = {
                        key: after for key, after in self._wanted().items() if self._idle.get(key) != after
                    }
                    if not wanted:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(CHECK_INTERVAL_S):
                                await self._work.wait()
                    elif self._give(wanted, await self._read(wanted, BLOCK_MS)):
                        await asyncio.sleep(PAUSE_S)
                    if time.monotonic() - checked_at > CHECK_INTERVAL_S:
                        await self._go_back()
                        await self._end_unknown()
                        checked_at = time.monotonic()
                except (RedisError, OSError) as error:
                    outages.warn(log, "event_read_failed", error, followed=self.followed)
                    await self._wait_for_redis()
                except Exception:  # the edge of a task: without it no follower would get events any more
                    log.exception("event_read_crashed")
                    await asyncio.sleep(RETRY_INTERVAL_S)
        finally:
            self.end()
            idle.cancel()
            await asyncio.wait([idle])

    @property
    def _is_to_end(self) -> bool:
        """True after `end`, or if the current task was cancelled: redis-py may swallow that, for a call whose reply has just come."""
        task = asyncio.current_task()
        return self._ended or bool(task and task.cancelling())

    def _start_idle(self) -> asyncio.Task[None]:
        """Start the task that reads idle streams; its failure is handled by `run`."""
        task = asyncio.create_task(self._read_idle())
        task.add_done_callback(lambda _: self._work.set())
        return task

    async def _read_idle(self) -> None:
        """Read the streams without events in the last IDLE_S with calls that wait. One that gets an event is left to `run` from then on."""
        before: dict[str, str] = {}
        if isinstance(self._redis, AsyncCluster):  # where a call reads one slot, and none could wait for all
            await asyncio.Event().wait()
        while not self._is_to_end:
            wanted, ends_at, woken = self._wanted(), time.monotonic() + IDLE_S, set[str]()
            self._idle = call = {key: after for key, after in wanted.items() if before.get(key) == after}
            before = wanted
            while not self._is_to_end and (left_s := ends_at - time.monotonic()) > 0:
                if not call:
                    await asyncio.sleep(left_s)
                elif found := await self._read(call, ceil(left_s * 1000)):
                    async with self._going_back:
                        self._give(call, found)
                    self._work.set()
                    await asyncio.sleep(PAUSE_S)
                    woken |= found.keys()
                    call = {**call, **{key: entries[-1][0] for key, entries in found.items()}}
                    call = {key: after for key, after in call.items() if not (key in woken and key in self._reading)}

    def end(self) -> None:
        """Stop reading: all followers get StreamsEnded."""
        self._ended = True
        self._work.set()
        for follower in self._all():
            follower.end(
                StreamsEnded(
                    "events are no longer read, since this client is closed or its process ends; the run goes on"
                )
            )

    @contextmanager
    def _followed(self, follower: Follower) -> Iterator[Follower]:
        if self._ended:
            follower.end(
                StreamsEnded(
                    "events are no longer read, since this client is closed or its process ends; the run goes on"
                )
            )
        self._followers.setdefault(follower.key, []).append(follower)
        self._work.set()
        try:
            yield follower
        finally:
            others = [each for each in self._followers[follower.key] if each is not follower]
            if others:
                self._followers[follower.key] = others
            else:
                del self._followers[follower.key]

    def _all(self) -> list[Follower]:
        return [follower for followers in self._followers.values() for follower in followers]

    def _wanted(self) -> dict[str, str]:
        """Return the streams to read, each from the lowest offset of its followers."""
        places = {
            key: [each.after for each in followers if each.has_capacity] for key, followers in self._followers.items()
        }
        return {key: f"0-{min(afters)}" for key, afters in places.items() if afters}

    async def _read(self, wanted: Mapping[str, str], block_ms: int) -> dict[str, list[Entry]]:
        if isinstance(self._redis, AsyncCluster):
            return await self._read_by_slot(self._redis, wanted)
        return streams_in(await self._redis.xread(dict(wanted), count=PAGE, block=block_ms))  # type: ignore[arg-type]  # wider key types

    async def _read_by_slot(self, cluster: AsyncCluster, wanted: Mapping[str, str]) -> dict[str, list[Entry]]:
        """Read the streams of a cluster, where one call reads one slot: all slots at once, and a pause if there was nothing."""
        slots: dict[str, list[str]] = {}
        for key in wanted:
            slots.setdefault(key.partition("}")[0], []).append(key)
        async with cluster.pipeline(transaction=False) as pipe:
            for keys in slots.values():
                pipe.execute_command(
                    "EVAL", READ, len(keys), *keys, PAGE, *(wanted[key] for key in keys)
                )  # redis-py needs their number
            replies = cast("list[list[tuple[str, list[tuple[str, list[str]]]]] | None]", await pipe.execute())
        found: dict[str, list[Entry]] = {}
        for reply in replies:
            found |= {key: [(entry_id, named(flat)) for entry_id, flat in entries] for key, entries in reply or ()}
        if not found:
            await asyncio.sleep(BLOCK_MS / 1000)
        return found

    def _give(self, wanted: Mapping[str, str], found: Mapping[str, Sequence[Entry]]) -> bool:
        """Hand out what was read, except to followers that were added at a lower offset meanwhile."""
        for key, entries in found.items():
            for follower in self._followers.get(key, ()):
                if follower.has_capacity and follower.after >= _offset(wanted[key]):
                    follower.give(entries)
        return bool(found)

    async def _end_unknown(self) -> None:
        """End the followers of runs that are gone."""
        followers = self._all()
        async with self._redis.pipeline(transaction=False) as pipe:
            for follower in followers:
                pipe.exists(run_key(self._redis, follower.run_id))
            known = await pipe.execute()
        for follower, is_known in zip(followers, known, strict=True):
            if not is_known:
                follower.end(UnknownRunError.of(follower.run_id))

    async def _wait_for_redis(self) -> None:
        """Wait until Redis is available. If it lost its last second, it writes other events under the same offsets."""
        while not self._is_to_end:
            await asyncio.sleep(RETRY_INTERVAL_S)
            try:
                await self._go_back()
                await self._end_unknown()
                return
            except (RedisError, OSError):
                continue

    async def _go_back(self) -> None:
        """Move the followers whose last entry has changed back to the last entry that is unchanged."""
        followers = [(follower, follower.last) for follower in self._all() if follower.last]
        async with self._redis.pipeline(transaction=False) as pipe:
            for follower, _ in followers:
                pipe.xrange(follower.key, min=f"0-{follower.after}", max=f"0-{follower.after}")
            found = cast("list[list[Entry]]", await pipe.execute())
        for (follower, last), entries in zip(followers, found, strict=True):
            if [last] != list(map(_mark, entries)):
                log.warning("events_lost", run=follower.run_id, after=follower.after)
                async with self._going_back:
                    newest = await self._redis.xrevrange(follower.key, count=BUFFER_ENTRIES)
                    follower.go_back(cast("list[Entry]", newest))


def _mark(entry: Entry) -> tuple[int, str]:
    """Return the offset and time of an entry, which tell it from another that is written later under the same offset."""
    return _offset(entry[0]), entry[1].get("at", "")


def _offset(entry_id: str) -> int:
    return int(entry_id.split("-")[1])
