"""The events of a run as server-sent events: their ids are offsets, so a reader that comes again misses nothing and gets nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from cantata.errors import CantataError
from cantata.models.events import RunEvent
from cantata.state.runs.streams import Streams, StreamsEnded

KEEP_ALIVE_S = 15.0  # shorter than proxies wait for a silent answer
RETRY_MS = 1000  # how soon a browser comes again when the connection is lost

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second: nginx is not to collect what it hands on


async def lines(streams: Streams, run_id: str, after: int, *, body_of: Callable[[CantataError], str]) -> AsyncIterator[str]:
    """The text of the stream: events after an offset, comments while nothing happens, the end with `closed`.

    `body_of` tells an error as JSON.
    """
    yield f"retry: {RETRY_MS}\n\n"
    with streams.follow(run_id, after=after) as follower:
        while True:
            try:
                found = await follower.events(KEEP_ALIVE_S)
            except StreamsEnded:
                return  # it comes again, to another server
            except CantataError as error:
                yield f"event: error\ndata: {body_of(error)}\n\n"
                return
            for event in found:
                yield _text(event)
                if event.ends_run:
                    return
            if not found:
                yield ": still here\n\n"


def _text(event: RunEvent) -> str:
    return f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
