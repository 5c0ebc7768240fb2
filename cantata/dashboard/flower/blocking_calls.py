"""Where the handlers get what they show: calls that block go to a few threads, so that Flower's event loop never waits for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from cantata.client.client import Client
from cantata.dashboard.flower.http_errors import Refused, refusal
from cantata.dashboard.pages.run_pages import Pages
from cantata.state.runs.streams import Streams, connect_async

THREADS = 8  # operators look at runs, not programs by the thousand
MOST_WAITING = 200  # calls that wait for a thread, before more are refused: Redis is away, or far too slow

P = ParamSpec("P")
T = TypeVar("T")


class Desk:
    """The runs of all tenants, and their events. Made in the event loop that it is used in."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.pages = Pages(client)
        self._redis = connect_async(client.redis_url, namespace=client.app.namespace)
        self.streams = Streams(self._redis)
        self._reading = asyncio.get_running_loop().create_task(self.streams.run())
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="runs")
        self._waiting = 0

    async def call(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call what blocks, in a thread. Raises Refused for an error that has a meaning."""
        if self._waiting >= MOST_WAITING:
            raise Refused(503, "too much is asked at once; come again", code="busy")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **more))
        except Exception as error:
            if (refused := refusal(error)) is not None:
                raise refused from error
            raise
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Let go of those who follow runs, of threads and connections."""
        self.streams.end()
        await self._reading
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._redis.aclose()
