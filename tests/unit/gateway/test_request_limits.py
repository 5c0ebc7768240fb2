"""A tenant's pace, where Redis does not tell it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cantata.gateway import request_limits
from cantata.gateway.http_errors import RequestRejected


class Paces:
    """Answers with a time to wait, or never."""

    def __init__(self, answer_s: float | None) -> None:
        self._answer_s = answer_s

    async def wait_s(self, tenant: str) -> float:
        if self._answer_s is None:
            await asyncio.Event().wait()
        return self._answer_s or 0.0


def hold(pace: Any) -> None:
    asyncio.run(asyncio.wait_for(request_limits.hold(pace, "acme"), 20))


def test_who_comes_too_soon_is_refused() -> None:
    hold(Paces(0.0))
    with pytest.raises(RequestRejected, match="too many requests"):
        hold(Paces(0.5))


def test_nobody_is_held_back_while_redis_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "TIMEOUT_S", 0.01)

    hold(Paces(None))
