"""Calls that block, beside Flower's event loop."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from cantata.dashboard.flower import blocking_calls
from cantata.dashboard.flower.blocking_calls import BlockingCalls
from cantata.dashboard.flower.http_errors import PageRequestRejected, body_of
from cantata.errors import ConfigError, UnavailableError, UnknownRunError


async def open_calls() -> BlockingCalls:
    """Blocking calls that connect to no Redis until one is made."""
    client: Any = SimpleNamespace(redis_url="redis://localhost:1", ledger=None, app=SimpleNamespace(namespace="x"))
    return BlockingCalls(client)


def test_more_than_can_wait_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_calls, "MAX_WAITING", 20)

    async def main() -> None:
        gate, own = threading.Event(), await open_calls()
        calls = [asyncio.create_task(own.call(gate.wait)) for _ in range(20)]
        await asyncio.sleep(0)
        with pytest.raises(PageRequestRejected, match="503"):
            await own.call(gate.wait)
        gate.set()
        assert await asyncio.gather(*calls) == [True] * 20
        assert await own.call(gate.wait)
        await own.close()

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
    def fail() -> NoReturn:
        raise error

    async def main() -> None:
        own = await open_calls()
        with pytest.raises(PageRequestRejected) as caught:
            await own.call(fail)
        assert (caught.value.status_code, caught.value.code, caught.value.message) == (status, code, str(error))
        await own.close()

    asyncio.run(main())


def test_what_nobody_foresaw_is_not_shown() -> None:
    async def main() -> None:
        own = await open_calls()
        with pytest.raises(ValueError, match="secret"):
            await own.call(int, "secret")
        await own.close()

    asyncio.run(main())

    assert "secret" not in body_of(ValueError("secret"))
