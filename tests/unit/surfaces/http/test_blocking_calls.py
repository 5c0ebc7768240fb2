"""Calls that block, beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine

import pytest

from cantata.surfaces.http.blocking_calls import CALLER, BlockingCalls
from cantata.surfaces.http.rejections import RequestRejected


def note(order: list[str], who: str) -> bool:
    order.append(who)
    return True


async def by(caller: str, work: Coroutine[object, object, bool]) -> bool:
    CALLER.set(caller)
    return await work


def test_more_than_can_wait_is_refused_at_once() -> None:
    async def main() -> None:
        gate, call = threading.Event(), BlockingCalls("Flower", threads=8, max_waiting=20)
        calls = [asyncio.create_task(call(gate.wait)) for _ in range(20)]
        await asyncio.sleep(0)
        with pytest.raises(RequestRejected, match="Flower is overloaded") as refused:
            await call(gate.wait)
        gate.set()
        assert (refused.value.status, refused.value.code) == (503, "busy")
        assert await asyncio.gather(*calls) == [True] * 20
        assert await call(gate.wait)
        call.close()

    asyncio.run(main())


def test_a_caller_leaves_threads_to_others_and_only_its_own_calls_are_refused() -> None:
    async def main() -> None:
        gate, call = threading.Event(), BlockingCalls("the gateway", threads=4, max_waiting=100, max_of_one=10)
        hogs = [asyncio.create_task(by(hog, call(gate.wait))) for hog in ("one", "two") for _ in range(10)]
        await asyncio.sleep(0)

        for other in ("three", "four"):
            assert not await by(other, call(gate.wait, 0)), "it finds a thread while both hogs wait"
        with pytest.raises(RequestRejected, match="10 calls of this tenant are under way") as refused:
            await by("one", call(gate.wait))

        assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
        gate.set()
        assert await asyncio.gather(*hogs) == [True] * 20
        call.close()

    asyncio.run(main())


def test_callers_take_turns() -> None:
    async def main() -> None:
        order: list[str] = []
        gate, call = threading.Event(), BlockingCalls("the gateway", threads=1, max_waiting=100)
        first = asyncio.create_task(by("one", call(gate.wait)))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(by(who, call(note, order, who))) for who in ("one", "one", "one", "two", "two")]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *rest)
        call.close()
        assert order == ["one", "two", "one", "two", "one"]

    asyncio.run(main())


def test_abandoned_calls_keep_their_threads_and_leave_the_queue() -> None:
    async def main() -> None:
        gate, call = threading.Event(), BlockingCalls("the gateway", threads=4, max_waiting=100, max_of_one=3)
        for _ in range(50):
            abandoned = [asyncio.create_task(by("one", call(gate.wait))) for _ in range(3)]
            await asyncio.sleep(0)
            for task in abandoned:
                task.cancel()
            await asyncio.gather(*abandoned, return_exceptions=True)

        assert not await by("two", call(gate.wait, 0)), "two threads are held, not four"
        gate.set()
        assert await by("one", call(gate.wait))
        call.close()

    asyncio.run(main())


def test_an_open_connection_waits_for_room_and_is_not_refused() -> None:
    async def main() -> None:
        order: list[str] = []
        gate, call = threading.Event(), BlockingCalls("the gateway", threads=4, max_waiting=100, max_of_one=3)
        hogs = [asyncio.create_task(by("one", call(gate.wait))) for _ in range(3)]
        await asyncio.sleep(0)
        patient = [asyncio.create_task(by("one", call.when_free(note, order, str(number)))) for number in range(9)]
        await asyncio.sleep(0)
        patient[0].cancel()

        assert not await by("two", call.when_free(gate.wait, 0)), "a second tenant notices nothing"
        with pytest.raises(RequestRejected):
            await by("one", call(gate.wait))
        assert order == []
        gate.set()
        assert await asyncio.gather(*hogs, *patient[1:]) == [True] * 11
        assert sorted(order) == [str(number) for number in range(1, 9)]
        call.close()

    asyncio.run(main())
