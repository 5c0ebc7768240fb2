"""PageService: the runs of all tenants for the handlers of the run pages in Flower."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from cantata.client.client import Client
from cantata.client.graphs.run_pages import RunPages
from cantata.client.streams import EventStreams
from cantata.surfaces.http.blocking_calls import BlockingCalls
from cantata.surfaces.http.rejections import RequestRejected

THREADS = 8  # for a few operators, not for programs
MAX_STREAMS = 200  # pages of open runs; a browser has six at most, and each takes about 0.1 MB
MAX_WAITING = 200  # calls that wait for a thread, before more are rejected: Redis is away, or far too slow


class PageService:
    """Runs, their pages and their events. Must be created in the event loop that uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.runs = client.of(None)
        self.pages = RunPages(client.engine)
        self.call = BlockingCalls("Flower", threads=THREADS, max_waiting=MAX_WAITING)
        self.open_streams = 0
        self.streams = EventStreams(client)
        self._reading = asyncio.get_running_loop().create_task(self.streams.run())

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count an open event stream. Raises RequestRejected if there are too many."""
        if self.open_streams >= MAX_STREAMS:
            raise RequestRejected(
                503, f"{MAX_STREAMS} event streams are open; close some pages", code="too_many_open", retry_after_s=5
            )
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1

    async def close(self) -> None:
        """End the event streams, the threads and the connections."""
        self.streams.end()
        await self._reading
        self.call.close()
        await self.streams.close()
