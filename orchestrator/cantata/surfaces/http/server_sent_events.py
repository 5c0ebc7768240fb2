"""Server-sent events of a run. Their ids are offsets, so a client that reconnects gets every event once."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cantata.client.failures import StreamsEnded
from cantata.client.streams import Streams
from cantata.errors import CantataError
from cantata.flows.events import RunEvent
from cantata.surfaces.http.rejections import RequestRejected, rejection_of

KEEP_ALIVE_S = 15.0  # less than the idle time-out of proxies
RETRY_MS = 1000  # until a browser reconnects

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second: nginx must not buffer the response


def offset_of(text: str) -> int:
    """Return the offset in a Last-Event-ID. Raises RequestRejected."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        message = f"Last-Event-ID, the offset of an event, must be a whole number, not {text[:40]!r}"
        raise RequestRejected(422, message, code="bad_request")
    return int(text)


async def lines(streams: Streams, run_id: str, after: int) -> AsyncIterator[str]:
    """Yield the text of the stream: events after an offset, comments while there are none, until `closed`."""
    yield f"retry: {RETRY_MS}\n\n"
    with streams.follow(run_id, after=after) as follower:
        while True:
            try:
                found = await follower.events(KEEP_ALIVE_S)
            except StreamsEnded:
                return  # the client reconnects, to another server
            except CantataError as error:
                if (rejected := rejection_of(error)) is None:
                    raise
                yield f"event: error\ndata: {rejected.body.model_dump_json()}\n\n"
                return
            for event in found:
                yield _text(event)
                if event.ends_run:
                    return
            if not found:
                yield ": still here\n\n"


def _text(event: RunEvent) -> str:
    return f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
