"""Readiness probes of the gateway, while Redis hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cantata.gateway import tenant_service
from cantata.gateway.tenant_service import TenantService
from cantata.state.fleet import registry
from cantata.state.fleet.load import USUAL_QUEUES


class HungClient:
    """The part of a client that is used here; its Redis answers once it is released."""

    def __init__(self) -> None:
        self.freed = threading.Event()
        self.redis = self

    def ping(self) -> None:
        """Wait, as for a server that is frozen."""
        self.freed.wait(20)
        raise RuntimeError("nobody waits for this any more")


def test_a_probe_is_answered_in_time_though_redis_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_service, "READY_S", 0.05)
    monkeypatch.setattr(tenant_service, "RunPages", lambda _: None)
    client = HungClient()
    service = TenantService(client, None)  # type: ignore[arg-type]  # as said there

    assert asyncio.run(service.faults()) == ["Redis gave no answer within 0.05 s"]
    client.freed.set()
    service.close()


class CountingClient(HungClient):
    """A client that counts its calls, and has no workers."""

    asked = 0

    def ping(self) -> None:
        """Answer."""
        self.asked += 1


def test_however_many_probe_redis_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_service, "RunPages", lambda _: None)
    monkeypatch.setattr(registry, "workers", lambda _: [])
    client = CountingClient()
    service = TenantService(client, None)  # type: ignore[arg-type]  # as said there

    async def probe() -> list[list[str]]:
        together = await asyncio.gather(*(service.faults() for _ in range(50)))
        return [*together, await service.faults()]

    answers = asyncio.run(probe())
    assert all(len(answer) == len(USUAL_QUEUES) for answer in answers)
    assert client.asked == 1
    service.close()
