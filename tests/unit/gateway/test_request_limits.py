"""Request rate of a tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cantata.dashboard.http.rejections import RequestRejected
from cantata.gateway import request_limits


class FixedRate:
    """Answers with a time to wait, or never."""

    def __init__(self, answer_s: float | None) -> None:
        self._answer_s = answer_s

    async def wait_s(self, tenant: str) -> float:
        if self._answer_s is None:
            await asyncio.Event().wait()
        return self._answer_s or 0.0


def check(rate: Any) -> None:
    asyncio.run(asyncio.wait_for(request_limits.check_rate(rate, "acme"), 20))


def test_a_request_above_the_rate_is_rejected() -> None:
    check(FixedRate(0.0))
    with pytest.raises(RequestRejected, match="too many requests"):
        check(FixedRate(0.5))


def test_nothing_is_rejected_while_redis_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "TIMEOUT_S", 0.01)

    check(FixedRate(None))
