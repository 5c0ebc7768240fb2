"""Calls that block, beside an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cantata.dashboard.http.blocking_calls import BlockingCalls
from cantata.dashboard.http.rejections import RequestRejected


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
