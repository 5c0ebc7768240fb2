"""The HTTP that gateway and Flower share: blocking calls beside an event loop, and rejections."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cantata.dashboard.flower.page_handlers import _rejection
from cantata.dashboard.http.blocking_calls import BlockingCalls
from cantata.dashboard.http.rejections import RequestRejected, rejection_of
from cantata.errors import ConfigError, UnavailableError, UnknownRunError


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


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownRunError("no run"), 404, "unknown_run"),
        (ConfigError("not so", code="odd"), 422, "odd"),
        (ConfigError("too many signals", code="quota_exceeded"), 429, "quota_exceeded"),
        (UnavailableError("Redis is away"), 503, "unavailable"),
    ],
)
def test_errors_with_a_meaning_are_told(error: Exception, status: int, code: str) -> None:
    rejected = rejection_of(error)

    assert rejected is not None
    assert (rejected.status, rejected.code, str(rejected)) == (status, code, str(error))


def test_what_nobody_foresaw_is_not_shown() -> None:
    assert rejection_of(ValueError("secret")) is None
    assert "secret" not in _rejection(ValueError("secret")).body.model_dump_json()
