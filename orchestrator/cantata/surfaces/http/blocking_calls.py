"""Blocking calls of a server in a few threads, shared fairly by its callers: the event loop never waits for Redis."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from cantata.surfaces.http.rejections import RequestRejected

CALLER: ContextVar[str | None] = ContextVar("caller", default=None)
"""The tenant whose request is served; None for what a server does for itself. Set where a request comes in, so that each call has it."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Job:
    """A call that waits for a thread, or has one."""

    call: Callable[[], object]
    caller: str | None
    done: asyncio.Future[object] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BlockingCalls:
    """Calls blocking functions in up to `threads` threads.

    A caller has at most half of the threads that others leave, so one more caller always finds one; its other calls wait. Callers take
    turns. A call whose caller went away keeps its thread until it ends, and counts as long.

    Args:
        server: The name of the server, for messages.
        threads: The number of threads.
        max_waiting: Calls that may be under way; more mean that Redis is away.
        max_of_one: Those of one caller among them; None for all.
    """

    def __init__(self, server: str, *, threads: int, max_waiting: int, max_of_one: int | None = None) -> None:
        self._server = server
        self._threads, self._max_waiting = threads, max_waiting
        self._max_of_one = max_waiting if max_of_one is None else max_of_one
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=server)
        self._waiting: dict[str | None, deque[_Job]] = {}
        """Jobs without a thread, by their caller; the caller whose turn it is comes first."""
        self._running: Counter[str | None] = Counter()
        self._under_way: Counter[str | None] = Counter()
        self._patient: dict[str | None, deque[asyncio.Future[None]]] = {}
        """Those who wait until their caller may have one more call under way."""

    async def when_free(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call a function in a thread, as soon as fewer than `max_of_one` calls of the caller are under way.

        For connections that stay open, whose number is limited, and for what follows a call that has had its effect: a run that was
        accepted must not be answered with a refusal, for its client would submit it again.
        """
        caller = CALLER.get()
        while self._has_too_many(caller):
            free = asyncio.get_running_loop().create_future()
            self._patient.setdefault(caller, deque()).append(free)
            try:
                await free
            except asyncio.CancelledError:
                self._wake(caller)  # it may have been this one's turn
                raise
        return await self(function, *args, **more)

    async def __call__(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call a function in a thread. Raises RequestRejected (429) if too many calls of the caller wait, (503) if too many of all do."""
        caller = CALLER.get()
        if self._under_way.total() >= self._max_waiting:
            raise RequestRejected(503, f"{self._server} is overloaded; retry in 1 s", code="busy", retry_after_s=1)
        if self._has_too_many(caller):
            message = f"{self._max_of_one} calls of this tenant are under way, and more are not queued; retry in 1 s"
            raise RequestRejected(429, message, code="busy", retry_after_s=1)
        job = _Job(partial(copy_context().run, partial(function, *args, **more)), caller)  # it knows who acts
        self._under_way[caller] += 1
        self._waiting.setdefault(caller, deque()).append(job)
        self._start()
        try:
            return cast(T, await job.done)
        finally:
            jobs = self._waiting.get(caller, deque())
            if job in jobs:  # its caller went away before its turn
                jobs.remove(job)
                if not jobs:
                    del self._waiting[caller]
                self._forget(job)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start jobs as far as there are threads for their callers."""
        while jobs := next((jobs for caller, jobs in self._waiting.items() if self._may_run(caller)), None):
            job = jobs.popleft()
            del self._waiting[job.caller]
            if jobs:
                self._waiting[job.caller] = jobs  # at the end: others have their turn before
            self._running[job.caller] += 1
            future = self._pool.submit(job.call)
            future.add_done_callback(partial(self._call_back, job.done.get_loop(), job))

    def _may_run(self, caller: str | None) -> bool:
        own, running = self._running[caller], self._running.total()
        return running < self._threads and (caller is None or own < max(1, (self._threads - running + own + 1) // 2))

    def _call_back(self, loop: asyncio.AbstractEventLoop, job: _Job, future: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(self._end, job, future)

    def _end(self, job: _Job, future: Future[Any]) -> None:
        self._running[job.caller] -= 1
        self._forget(job)
        if not job.done.done():
            if future.cancelled():
                job.done.cancel()
            elif error := future.exception():
                job.done.set_exception(error)
            else:
                job.done.set_result(future.result())
        self._start()

    def _has_too_many(self, caller: str | None) -> bool:
        return caller is not None and self._under_way[caller] >= self._max_of_one

    def _wake(self, caller: str | None) -> None:
        """Let the first of those who wait for one call fewer of this caller try again."""
        patient = self._patient.get(caller, deque())
        while patient and (free := patient.popleft()):
            if not free.done():
                free.set_result(None)
                break
        if not patient:
            self._patient.pop(caller, None)

    def _forget(self, job: _Job) -> None:
        self._under_way[job.caller] -= 1
        self._wake(job.caller)
        self._running, self._under_way = +self._running, +self._under_way  # without callers that have none
