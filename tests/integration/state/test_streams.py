"""Many readers of many runs, on one connection; the rate of tenants; the newest runs of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import cast

import pytest
from redis import Redis

from cantata.engine.limits.request_rate import RequestRate
from cantata.errors import CantataError, UnknownRunError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import Entry
from cantata.ledger.runs import event_log
from cantata.ledger.runs import streams as streams_module
from cantata.ledger.runs.streams import BUFFER_ENTRIES, PAUSE_S, Follower, Streams, StreamsEnded, connect_async

PATIENCE_S = 20.0


@pytest.fixture(params=["usual", "soon idle"])
def _idle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are left to the call for idle ones as usual, or all the time."""
    if request.param == "soon idle":
        monkeypatch.setattr(streams_module, "IDLE_S", 0.02)


def accept(ledger: Ledger, run_id: str, tenant: str = "") -> None:
    ledger.runs.accept(
        run_id,
        kind="turn",
        request="{}",
        definitions="{}",
        timeout_s=60,
        max_attempts=3,
        max_steps=9,
        labels={"tenant": tenant},
    )


def url_of(valkey: Redis) -> str:
    return f"unix://{valkey.connection_pool.connection_kwargs['path']}"


@asynccontextmanager
async def reading(valkey: Redis) -> AsyncIterator[Streams]:
    """Streams that are read."""
    redis = connect_async(url_of(valkey))
    streams = Streams(redis)
    task = asyncio.create_task(streams.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield streams
    finally:
        streams.end()
        await task
        await redis.aclose()


async def collect(follower: Follower, last: int) -> list[int]:
    """The offsets that come, up to and with one."""
    seqs: list[int] = []
    while not seqs or seqs[-1] < last:
        seqs += [event.seq for event in await follower.events()]
    return seqs


@pytest.mark.usefixtures("_idle")
def test_each_reader_gets_every_event_after_its_own_place(ledger: Ledger, valkey: Redis) -> None:
    runs = [f"run-{i}" for i in range(50)]
    for run_id in runs:
        accept(ledger, run_id)

    async def main() -> None:
        async with reading(valkey) as streams:
            with streams.follow("run-0") as first, streams.follow("run-0", after=3) as later:
                followers = [streams.follow(run_id) for run_id in runs[1:]]
                entered = [follower.__enter__() for follower in followers]
                for number in range(9):
                    for run_id in runs:
                        ledger.runs.append_event(run_id, "warning", detail={"message": f"{run_id} {number}"})
                assert await collect(first, 10) == list(range(1, 11))
                assert await collect(later, 10) == list(range(4, 11))
                for follower in entered:
                    assert await collect(follower, 10) == list(range(1, 11))
                for follower_context in followers:
                    follower_context.__exit__(None, None, None)
            assert streams.followed == 0

    asyncio.run(main())


@pytest.mark.usefixtures("_idle")
def test_who_begins_while_others_are_read_for_misses_nothing(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "shared")
    ledger.runs.append_event("shared", "warning", detail={"message": "before"})

    async def main() -> None:
        async with reading(valkey) as streams:
            with streams.follow("shared") as first:
                assert await collect(first, 2) == [1, 2]
                for number in range(3, 20):
                    await asyncio.sleep(
                        3 * PAUSE_S
                    )  # a read for the first one is under way, from behind what the second one wants
                    with streams.follow("shared") as second:
                        ledger.runs.append_event("shared", "warning", detail={"message": "meanwhile"})
                        assert await collect(second, number) == list(range(1, number + 1))

    asyncio.run(main())


@pytest.mark.usefixtures("_idle")
def test_a_slow_reader_is_read_for_only_as_it_takes_and_misses_nothing(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "long")
    for _ in range(4 * BUFFER_ENTRIES):
        ledger.runs.append_event("long", "warning", detail={"message": "x"})

    async def main() -> None:
        async with reading(valkey) as streams:
            with streams.follow("long") as slow, streams.follow("long") as fast:
                assert await collect(fast, 4 * BUFFER_ENTRIES) == list(range(1, 4 * BUFFER_ENTRIES + 1))
                assert slow.after <= 2 * BUFFER_ENTRIES, "the rest waits in Redis"
                assert await collect(slow, 4 * BUFFER_ENTRIES) == list(range(1, 4 * BUFFER_ENTRIES + 1))

    asyncio.run(main())


def test_idle_streams_are_read_by_one_call_that_waits_until_the_first_event(
    ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_S", 0.5)
    runs = [f"idle-{number}" for number in range(20)]
    for run_id in runs:
        accept(ledger, run_id)

    async def main() -> None:
        async with reading(valkey) as streams, asyncio.TaskGroup() as tasks:
            with ExitStack() as following:
                followers = [following.enter_context(streams.follow(run_id)) for run_id in runs]
                for follower in followers:
                    assert await collect(follower, 1) == [1]
                await asyncio.sleep(1.2)
                before = reads(valkey)
                await asyncio.sleep(1.0)
                assert reads(valkey) - before <= 4, "each call waits for half a second; other reads take 20 ms"
                arrival = tasks.create_task(collect(followers[0], 2))
                since = time.monotonic()
                ledger.runs.append_event(runs[0], "warning", detail={"message": "first"})
                await arrival
                assert time.monotonic() - since < 0.2, "it does not wait for the end of the call"
                for number in range(3, 50):
                    ledger.runs.append_event(runs[0], "warning", detail={"message": "more"})
                    assert await collect(followers[0], number) == [number]

    asyncio.run(main())


def reads(valkey: Redis) -> int:
    """How often events were read."""
    return int(valkey.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"])


@pytest.mark.usefixtures("_idle")
def test_the_end_of_a_run_is_waited_for(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "ends")

    async def main() -> None:
        async with reading(valkey) as streams:
            assert not await streams.wait_closed("ends", 0.05)
            waiting = asyncio.create_task(streams.wait_closed("ends", PATIENCE_S))
            ledger.runs.cancel("ends")
            assert await waiting

    asyncio.run(main())


def test_a_closed_run_is_followed_from_its_last_event_to_nothing(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "run-1")
    ledger.runs.cancel("run-1")
    last = list(event_log.follow(valkey, "run-1"))[-1]

    assert last.type == "closed"
    assert list(event_log.follow(valkey, "run-1", after=last.seq)) == []


@pytest.mark.slow("it looks for a lost run every five seconds")
def test_a_run_that_is_gone_is_not_waited_for(ledger: Ledger, valkey: Redis) -> None:
    async def main() -> None:
        async with reading(valkey) as streams:
            with streams.follow("never-was") as follower, pytest.raises(UnknownRunError):
                await follower.events()

    asyncio.run(main())


def test_reading_ends_at_whatever_moment_it_is_told_to(
    ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_S", 0.02)
    accept(ledger, "run-0")

    async def main() -> None:
        for moment in range(40):  # among them those when the reply for idle streams has just come
            async with reading(valkey) as streams:
                with streams.follow("run-0"):
                    await asyncio.sleep(0.015 + moment % 20 * 0.003)

    asyncio.run(main())


@pytest.mark.parametrize("whose", ["of idle streams", "of the others"])
def test_reading_ends_though_the_cancellation_of_a_call_is_swallowed(
    ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_S", 0.3)
    accept(ledger, "run-0")

    class Swallowing(Streams):
        """Redis replies to a call at the moment of its cancellation, which redis-py swallows now and then."""

        entered = asyncio.Event()

        async def _read(self, wanted: Mapping[str, str], block_ms: int) -> dict[str, list[Entry]]:
            if (block_ms > streams_module.BLOCK_MS) != (whose == "of idle streams"):
                return await super()._read(wanted, block_ms)
            self.entered.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return {}

    async def main() -> None:
        redis = connect_async(url_of(valkey))
        streams = Swallowing(redis)
        with streams.follow("run-0") as follower:
            task = asyncio.create_task(streams.run())
            await streams.entered.wait()
            for each in asyncio.all_tasks() - {asyncio.current_task()}:  # as at the end of an event loop
                each.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait([task])
            with suppress(CantataError):
                while await follower.events():
                    pass
            assert isinstance(follower.fault, StreamsEnded)
        await redis.aclose()

    asyncio.run(main())


def test_readers_are_told_when_the_process_ends(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "goes-on")

    async def main() -> None:
        async with reading(valkey) as streams:
            with streams.follow("goes-on", after=1) as follower:
                waiting = asyncio.create_task(follower.events())
                await asyncio.sleep(0)
                streams.end()
                with pytest.raises(StreamsEnded):
                    await waiting

    asyncio.run(main())


@pytest.mark.usefixtures("_idle")
def test_offsets_that_redis_lost_are_read_anew(ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "CHECK_INTERVAL_S", 0.05)
    accept(ledger, "rewound")
    for _ in range(5):
        ledger.runs.append_event("rewound", "warning", detail={"message": "lost"})

    async def main() -> None:
        async with reading(valkey) as streams:
            with streams.follow("rewound") as follower:
                assert await collect(follower, 6) == [1, 2, 3, 4, 5, 6]
                valkey.delete(
                    f"{run_key(None, 'rewound')}:log"
                )  # as a server has it that was restarted and lost its last second
                ledger.runs.append_event("rewound", "warning", detail={"message": "again"})
                assert [event.explanation for event in await follower.events()] == ["again"]

    asyncio.run(main())
    valkey.flushdb()  # what this test did to the run is no state that a ledger knows


def test_events_that_come_during_a_check_are_not_taken_for_lost(
    ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(ledger, "checked")
    ledger.runs.append_event("checked", "warning", detail={"message": "during the check"})
    monkeypatch.delattr(Follower, "go_back")

    async def main() -> None:
        redis = connect_async(url_of(valkey))
        streams, pipeline = Streams(redis), redis.pipeline
        with streams.follow("checked") as follower:
            first, second = cast("list[Entry]", await redis.xrange(follower.key))
            follower.give([first])

            def slow_pipeline(*, transaction: bool) -> object:
                pipe = pipeline(transaction=transaction)
                execute = pipe.execute

                async def execute_slowly() -> object:
                    found = await execute()
                    follower.give([second])
                    return found

                monkeypatch.setattr(pipe, "execute", execute_slowly)
                return pipe

            monkeypatch.setattr(redis, "pipeline", slow_pipeline)
            await streams._go_back()
            assert [event.seq for event in await follower.events()] == [1, 2]
        await redis.aclose()

    asyncio.run(main())


def test_a_tenant_has_its_burst_and_then_its_rate(valkey: Redis) -> None:
    valkey.flushdb()

    async def main() -> None:
        redis = connect_async(url_of(valkey))
        rate = RequestRate(redis, per_s=0.5, burst=3)
        waits = [await rate.wait_s("a:b {c}") for _ in range(5)]
        assert waits[:3] == [0, 0, 0]
        assert all(1.5 < wait <= 2 for wait in waits[3:]), "what waits takes nothing"
        assert await rate.wait_s("other") == 0
        await redis.aclose()

    asyncio.run(main())
    assert {valkey.ttl(key) > 0 for key in valkey.scan_iter("*requests*")} == {True}


def test_many_requests_of_many_tenants_at_once_are_counted_each(valkey: Redis) -> None:
    valkey.flushdb()

    async def main() -> None:
        redis = connect_async(url_of(valkey))
        rate = RequestRate(redis, per_s=0.5, burst=20)
        asked = [f"tenant-{i % 3}" for i in range(90)]
        waits = await asyncio.gather(*(rate.wait_s(tenant) for tenant in asked))
        for tenant in set(asked):
            own = [wait for wait, name in zip(waits, asked, strict=True) if name == tenant]
            assert own[:20] == [0] * 20
            assert all(1 < wait <= 2 for wait in own[20:]), own
        await redis.aclose()

    asyncio.run(main())


def test_requests_that_give_up_leave_nobody_waiting(ledger: Ledger, valkey: Redis) -> None:
    accept(ledger, "r")

    async def give_up(rate: RequestRate, after_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await rate.wait_s("hasty")

    async def main() -> None:
        redis = connect_async(url_of(valkey))
        streams, rate = Streams(redis), RequestRate(redis, per_s=1e5, burst=10**6)
        task = asyncio.create_task(streams.run())
        with streams.follow("r") as follower:
            for round_ in range(1, 31):
                await asyncio.gather(*(give_up(rate, (i % 50) / 5000) for i in range(300)))
                ledger.runs.append_event("r", "warning", detail={"message": str(round_)})
                async with asyncio.timeout(PATIENCE_S):
                    await collect(follower, round_)
            assert await rate.wait_s("hasty") == 0
        streams.end()
        await task
        await redis.aclose()

    asyncio.run(main())
