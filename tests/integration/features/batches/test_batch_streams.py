"""Batches followed by many readers: one task reads for all, and no reader costs another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from redis import Redis

from cantata.errors import CantataError, ConfigError
from cantata.features.batches import batch_streams
from cantata.features.batches.batch_store import BatchInfo, BatchStore, Delivered
from cantata.features.batches.batch_streams import BatchStreams, BatchUpdate
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.async_connection import connect_async
from cantata.ledger.runs.streams import StreamsEnded
from cantata.values import Usage
from tests.integration.features.batches.test_batches import begin
from tests.integration.test_threads import url_of

PATIENCE_S = 20.0


@pytest.fixture
def store(ledger: Ledger) -> BatchStore:
    return BatchStore(ledger, "acme")


@asynccontextmanager
async def streams_of(valkey: Redis) -> AsyncIterator[BatchStreams]:
    redis = connect_async(url_of(valkey))
    streams = BatchStreams(redis)
    reading = asyncio.create_task(streams.run())
    try:
        yield streams
    finally:
        streams.end()
        await reading
        await redis.aclose()


def deliver(store: BatchStore, batch: BatchInfo, row: int) -> None:
    store.record(batch, submitted=row + 1, delivered=[Delivered(row, False, Usage())])


def reads(valkey: Redis) -> int:
    found = valkey.info("commandstats")
    return int(found.get("cmdstat_hgetall", {"calls": 0})["calls"])


def test_hundreds_of_readers_cost_one_read_and_each_gets_the_change(store: BatchStore, valkey: Redis) -> None:
    batch = begin(store)

    async def main() -> None:
        async with streams_of(valkey) as streams:
            with ExitStack() as stack:
                followers = [stack.enter_context(streams.follow(store.key_of("rows"), batch)) for _ in range(500)]
                assert await followers[0].changed(3 * batch_streams.EVERY_S) is None, "nothing has changed"
                valkey.config_resetstat()
                deliver(store, batch, 0)
                updates = [await follower.changed(PATIENCE_S) for follower in followers]
                assert {update.batch.delivered for update in updates if update} == {1}
                assert len({id(update.text) for update in updates if update}) == 1, "the text was made once"
                assert reads(valkey) < 50

    asyncio.run(main())


def test_a_reader_that_is_slow_gets_the_newest_state_only(
    store: BatchStore, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_streams, "EVERY_S", 0.01)
    batch = begin(store)

    async def main() -> None:
        async with streams_of(valkey) as streams:
            key = store.key_of("rows")
            with streams.follow(key, batch) as slow, streams.follow(key, batch) as quick:
                for row in range(5):
                    deliver(store, batch, row)
                    while not ((update := await quick.changed(PATIENCE_S)) and update.batch.delivered == row + 1):
                        pass
                newest = await slow.changed(PATIENCE_S)
                assert newest
                assert newest.batch.delivered == 5
                with streams.follow(key, batch) as late:
                    assert await late.changed(PATIENCE_S) == newest

    asyncio.run(main())


def test_a_batch_that_is_gone_or_unreadable_ends_its_readers_alone(store: BatchStore, valkey: Redis) -> None:
    begun = {name: begin(store, name) for name in ("gone", "broken", "good")}

    async def main() -> None:
        async with streams_of(valkey) as streams:
            with ExitStack() as stack:
                follow = {
                    name: stack.enter_context(streams.follow(store.key_of(name), batch))
                    for name, batch in begun.items()
                }
                valkey.delete(store.key_of("gone"))
                valkey.hset(store.key_of("broken"), "identity", "no JSON")
                deliver(store, begun["good"], 0)

                with pytest.raises(ConfigError, match="there is no batch 'gone'"):
                    await follow["gone"].changed(PATIENCE_S)
                with pytest.raises(CantataError, match="the record of batch 'broken': it cannot be read"):
                    await follow["broken"].changed(PATIENCE_S)
                update = await follow["good"].changed(PATIENCE_S)
                assert isinstance(update, BatchUpdate)

    asyncio.run(main())


def test_the_end_of_the_process_ends_all_readers_at_once(store: BatchStore, valkey: Redis) -> None:
    batch = begin(store)

    async def main() -> None:
        async with streams_of(valkey) as streams:
            with streams.follow(store.key_of("rows"), batch) as early:
                streams.end()
                with pytest.raises(StreamsEnded):
                    await early.changed(PATIENCE_S)
            with streams.follow(store.key_of("rows"), batch) as late, pytest.raises(StreamsEnded):
                await late.changed(PATIENCE_S)

    asyncio.run(main())
