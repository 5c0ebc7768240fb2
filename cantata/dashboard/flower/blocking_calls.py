"""Blocking calls of the handlers, in a few threads: Flower's event loop never waits for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from cantata.client.client import Client
from cantata.dashboard.flower.http_errors import PageRequestRejected, page_rejection
from cantata.dashboard.pages.run_pages import RunPages
from cantata.state.runs.streams import Streams, connect_async

THREADS = 8  # for a few operators, not for programs
MAX_WAITING = 200  # calls that wait for a thread, before more are rejected: Redis is away, or far too slow

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """Access to the runs of all tenants and their events. Must be created in the event loop that uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.pages = RunPages(client)
        self._redis = connect_async(client.redis_url, namespace=client.app.namespace)
        self.streams = Streams(self._redis)
        self._reading = asyncio.get_running_loop().create_task(self.streams.run())
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="runs")
        self._waiting = 0

    async def call(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call a blocking function in a thread. Raises PageRequestRejected for an expected error."""
        if self._waiting >= MAX_WAITING:
            raise PageRequestRejected(503, "Flower has too many requests under way; retry in 1 s", code="busy")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **more))
        except Exception as error:
            if (rejected := page_rejection(error)) is not None:
                raise rejected from error
            raise
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """End the event streams, the threads and the connections."""
        self.streams.end()
        await self._reading
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._redis.aclose()
