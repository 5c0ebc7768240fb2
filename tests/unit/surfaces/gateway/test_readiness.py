"""Readiness probes of the gateway, while Redis hangs."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cantata.client.fleet import Fleet
from cantata.engine.fleet import load, registry
from cantata.engine.fleet.load import USUAL_QUEUES
from cantata.surfaces.gateway import readiness
from cantata.surfaces.gateway.readiness import Readiness


class HungRedis:
    """A Redis that answers once it is released."""

    def __init__(self) -> None:
        self.freed = threading.Event()

    def ping(self) -> None:
        """Wait, as for a server that is frozen."""
        self.freed.wait(20)


class CountingRedis(HungRedis):
    """A Redis that counts its calls."""

    asked = 0

    def ping(self) -> None:
        """Answer."""
        self.asked += 1


@pytest.fixture(autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of Redis asks whether it takes writes."""
    monkeypatch.setattr(load, "write_error", lambda redis: redis.ping() or "")


def readiness_of(redis: HungRedis) -> Readiness:
    engine: Any = SimpleNamespace(ledger=SimpleNamespace(redis=redis))
    client: Any = SimpleNamespace(fleet=Fleet(engine))
    return Readiness(client, asyncio.to_thread)


def test_a_probe_is_answered_in_time_though_redis_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "READY_S", 0.05)
    redis = HungRedis()

    async def probe() -> list[str]:
        found = await readiness_of(redis).faults()
        redis.freed.set()
        return found

    assert asyncio.run(probe()) == ["Redis gave no answer within 0.05 s"]


def test_however_many_probe_redis_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "workers", lambda _: [])
    redis = CountingRedis()

    async def probe() -> list[list[str]]:
        probed = readiness_of(redis)
        together = await asyncio.gather(*(probed.faults() for _ in range(50)))
        return [*together, await probed.faults()]

    answers = asyncio.run(probe())
    assert all(len(answer) == len(USUAL_QUEUES) for answer in answers)
    assert redis.asked == 1
