"""Blocking calls of a server in a few threads: its event loop never waits for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from cantata.dashboard.http.rejections import RequestRejected

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """Calls blocking functions in up to `threads` threads; `max_waiting` calls may be under way: more mean that Redis is away."""

    def __init__(self, server: str, *, threads: int, max_waiting: int) -> None:
        self._server = server
        self._max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=server)
        self._waiting = 0

    async def __call__(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call a function in a thread. Raises RequestRejected if too many calls wait."""
        if self._waiting >= self._max_waiting:
            raise RequestRejected(503, f"{self._server} is overloaded; retry in 1 s", code="busy", retry_after_s=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **more))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
