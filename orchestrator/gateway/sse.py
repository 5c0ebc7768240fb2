"""The events of a run as the gateway tells them, and whether there are more of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from orchestrator.client import Run
from orchestrator.gateway.faults import refusal
from orchestrator.gateway.service import Service
from orchestrator.pages import sse
from orchestrator.state import events

HEADERS = sse.HEADERS


def lines(service: Service, run: Run, after: int) -> AsyncIterator[str]:
    """The text of the stream: events after an offset, comments while nothing happens, the end with `closed`."""
    return sse.lines(service.streams, run.run_id, after, body_of=lambda error: refusal(error).body.model_dump_json())


async def has_more(service: Service, run: Run, after: int) -> bool:
    """Whether there are events after an offset now."""
    return bool(await service.call(events.read, service.client.redis, run.run_id, after=after, most=1))
