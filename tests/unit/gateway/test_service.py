"""What the gateway does for whoever asks, while Redis hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from orchestrator.gateway import service
from orchestrator.gateway.service import Service


class HungClient:
    """As much of a client as is looked at here; its Redis answers when it is let go."""

    def __init__(self) -> None:
        self.freed = threading.Event()
        self.redis = self

    def ping(self) -> None:
        """Wait, as for a server that is frozen."""
        self.freed.wait(20)
        raise RuntimeError("nobody waits for this any more")


def test_a_probe_is_answered_in_time_though_redis_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "READY_S", 0.05)
    monkeypatch.setattr(service, "Pages", lambda _: None)
    client = HungClient()
    desk = Service(client, None)  # type: ignore[arg-type]  # as said there

    assert asyncio.run(desk.faults()) == ["Redis gave no answer within 0.05 s"]
    client.freed.set()
    desk.close()
