"""The events of a run as server-sent events: their ids are offsets, so a reader that comes again misses nothing and gets nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

from orchestrator.client import Run
from orchestrator.errors import CantataError
from orchestrator.gateway.faults import refusal
from orchestrator.gateway.service import Service
from orchestrator.models.wire import RunEvent
from orchestrator.state import events
from orchestrator.state.streams import StreamsEnded

KEEP_ALIVE_S = 15.0  # shorter than proxies wait for a silent answer
RETRY_MS = 1000  # how soon a browser comes again when the connection is lost

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second: nginx is not to collect what it hands on


async def lines(service: Service, run: Run, after: int) -> AsyncIterator[str]:
    """The text of the stream: events after an offset, comments while nothing happens, the end with `closed`."""
    yield f"retry: {RETRY_MS}\n\n"
    with service.streams.follow(run.run_id, after=after) as follower:
        while True:
            try:
                found = await follower.events(KEEP_ALIVE_S)
            except StreamsEnded:
                return  # it comes again, to another gateway
            except CantataError as error:
                yield f"event: error\ndata: {refusal(error).body.model_dump_json()}\n\n"
                return
            for event in found:
                yield _text(event)
                if event.type == "closed":
                    return
            if not found:
                yield ": still here\n\n"


async def has_more(service: Service, run: Run, after: int) -> bool:
    """Whether there are events after an offset now."""
    return bool(await service.call(events.read, service.client.redis, run.run_id, after=after, most=1))


def _text(event: RunEvent) -> str:
    return f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
