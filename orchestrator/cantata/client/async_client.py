"""AsyncClient: the client for coroutines. Its methods are those of `Client`, called in threads; only waiting for a run is asynchronous."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial, update_wrapper
from operator import methodcaller
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from cantata.client.client import Client
from cantata.client.runs import ChainRun, Run, TurnRun, check_timeout
from cantata.features.batches.rows import BatchRow, Row
from cantata.flows.definitions import Definitions
from cantata.flows.events import RunEvent
from cantata.flows.wire import RUN_OVER, ChainEvent, ChainResponse, RunResult
from cantata.ledger.redis.async_connection import Redis, connect_async
from cantata.ledger.redis.keys import namespace_of
from cantata.ledger.runs.streams import Streams

THREADS = 8  # calls of Redis at once; each takes about a millisecond
READ_S = 5.0  # to read the result of a run that is over

Params = ParamSpec("Params")
Result = TypeVar("Result")
Outcome_co = TypeVar("Outcome_co", covariant=True)
Event = TypeVar("Event")
Blocking = TypeVar("Blocking")

if TYPE_CHECKING:
    from celery import Celery


class FollowedRun(Protocol[Outcome_co, Event]):
    """A run with a result and events of some type: `TurnRun` or `ChainRun`."""

    run_id: str
    kind: str

    def so_far(self) -> Outcome_co: ...
    def events_of(self, log: Sequence[RunEvent], /) -> list[Event]: ...


class _InThreads(Generic[Blocking]):
    """An object whose methods are those of a blocking one, called in threads."""

    _threads: ThreadPoolExecutor
    blocking: Callable[[], Blocking]

    async def call(
        self, function: Callable[Concatenate[Blocking, Params], Result], *args: Params.args, **options: Params.kwargs
    ) -> Result:
        """Call a function in a thread, with the blocking object and these arguments. It goes on if the waiting coroutine is cancelled."""
        call = partial(contextvars.copy_context().run, lambda: function(self.blocking(), *args, **options))
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def in_thread(
    method: Callable[Concatenate[Blocking, Params], Result],
) -> Callable[Concatenate[_InThreads[Blocking], Params], Coroutine[Any, Any, Result]]:
    """Return a method that calls a blocking one in a thread."""

    async def call(self: _InThreads[Blocking], /, *args: Params.args, **options: Params.kwargs) -> Result:
        return await self.call(method, *args, **options)

    update_wrapper(call, method)
    return call


class AsyncRun(_InThreads[Any], Generic[Outcome_co, Event]):
    """An accepted run, as `TurnRun` or `ChainRun`. A coroutine that waits for it, or for its events, holds no thread."""

    def __init__(self, client: AsyncClient, run: FollowedRun[Outcome_co, Event]) -> None:
        self._client, self._threads, self.blocking = client, client._threads, lambda: run
        self.run_id, self.kind = run.run_id, run.kind

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.run_id!r})"

    status, record, steps, view = (
        in_thread(Run.status),
        in_thread(Run.record),
        in_thread(Run.steps),
        in_thread(Run.view),
    )
    cancel, signal, query = in_thread(Run.cancel), in_thread(Run.signal), in_thread(Run.query)
    waiting_steps = in_thread(Run.waiting_steps)

    async def so_far(self) -> Outcome_co:
        """Return its result so far, without waiting."""
        return await self.call(lambda run: run.so_far())

    async def result(self, timeout_s: float | None = None) -> Outcome_co:
        """Wait until it is over and return its result. Raises TimeoutError past `timeout_s`; the run goes on."""
        check_timeout(timeout_s)
        streams = await self._client.streams()
        if not await streams.wait_closed(self.run_id, timeout_s) and await self.status() not in RUN_OVER:
            raise TimeoutError(f"run {self.run_id} is not over after {timeout_s} s; it goes on")
        return await self.call(lambda run: run.result(READ_S))

    async def events(
        self, from_offset: int | None = None, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield its events after `from_offset` as they come, until it is over; of a chain request the events of its nodes."""
        async with aclosing(self._follow(from_offset, timeout_s)) as found:
            async for log in found:
                for event in await self.call(methodcaller("events_of", log)):
                    yield event

    async def log(
        self, from_offset: int | None = None, *, timeout_s: float | None = None
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield its events after `from_offset` as they come, until it is over."""
        async with aclosing(self._follow(from_offset, timeout_s)) as found:
            async for log in found:
                for event in log:
                    yield event

    async def _follow(
        self, from_offset: int | None, timeout_s: float | None
    ) -> AsyncGenerator[Sequence[RunEvent], None]:
        """Yield the events after an offset, as they come, up to `closed` or until `timeout_s` has passed."""
        check_timeout(timeout_s)
        loop, streams = asyncio.get_running_loop(), await self._client.streams()
        give_up = None if timeout_s is None else loop.time() + timeout_s
        after = from_offset or 0
        if after and not await self._client.call(lambda client: client.of(None).has_events(self.run_id, after)):
            return
        with streams.follow(self.run_id, after=after) as follower:
            while events := await follower.events(None if give_up is None else max(0.0, give_up - loop.time())):
                yield events
                after = events[-1].seq
                if events[-1].ends_run:
                    return
        yield await self.call(lambda run: list(run.log(after, timeout_s=0.0)))  # those that were not read in time


AsyncTurnRun = AsyncRun[RunResult, RunEvent]
AsyncChainRun = AsyncRun[ChainResponse, ChainEvent]
_Method = Callable[Concatenate["AsyncClient", Params], Coroutine[Any, Any, Result]]


def accepting(
    method: Callable[Concatenate[Client, Params], FollowedRun[Outcome_co, Event]],
) -> _Method[Params, AsyncRun[Outcome_co, Event]]:
    """Return a method that calls a blocking one in a thread, and returns the asynchronous handle of its run."""

    async def call(self: AsyncClient, /, *args: Params.args, **options: Params.kwargs) -> AsyncRun[Outcome_co, Event]:
        return AsyncRun(self, await self.call(method, *args, **options))

    update_wrapper(call, method)
    return call


def accepting_either(
    method: Callable[Concatenate[Client, Params], TurnRun | ChainRun],
) -> _Method[Params, AsyncTurnRun | AsyncChainRun]:
    """Return the same for a method whose run may be a turn's or a chain's."""
    return accepting(cast(Any, method))


class AsyncClient(_InThreads[Client]):
    """A client for coroutines: each method does as that of `Client`, in one of `threads` threads. It connects at the first call.

    `await client.call(function, ...)` calls any function with the `Client`, such as one that reads its sessions or memory.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        config: str | Path | Definitions | None = None,
        namespace: str | None = None,
        app: Celery | None = None,
        threads: int = THREADS,
    ) -> None:
        self._make: Callable[[], Client] = partial(
            Client, redis_url, broker_url=broker_url, config=config, namespace=namespace, app=app
        )
        self._client: Client | None = None
        self._is_own = True
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="cantata-client")
        self._streams: dict[asyncio.AbstractEventLoop, tuple[Streams, asyncio.Task[None]]] = {}

    @classmethod
    def of(cls, client: Client | Callable[[], Client], *, threads: int = THREADS) -> Self:
        """Return one that uses this client, or the one that a function returns at the first call, and does not close it."""
        made = cls(threads=threads)
        made._make, made._is_own = (client if callable(client) else lambda: client), False
        return made

    submit_turn, submit_chain = accepting(Client.submit_turn), accepting(Client.submit_chain)
    submit_workflow, test_webhook = accepting(Client.submit_workflow), accepting(Client.test_webhook)
    run, fork, retry = accepting_either(Client.run), accepting_either(Client.fork), accepting_either(Client.retry)
    inbox, answer, tenants = in_thread(Client.inbox), in_thread(Client.answer), in_thread(Client.tenants)
    audit = in_thread(Client.audit)
    runs, fleet_warnings, read_definitions = (
        in_thread(Client.runs),
        in_thread(Client.fleet_warnings),
        in_thread(Client.read_definitions),
    )

    async def batch(self, rows: Iterable[Row], **options: Any) -> AsyncGenerator[BatchRow, None]:
        feed = await self.call(lambda client: client.feed_batch(rows, **options))
        groups, loop = feed.groups(), asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="cantata-batch")
        try:
            while (group := await loop.run_in_executor(thread, next, groups, None)) is not None:
                for row in group:
                    yield row
                await loop.run_in_executor(thread, feed.deliver, group)
        finally:
            feed.stop()
            thread.submit(groups.close)
            thread.shutdown(wait=False)

    update_wrapper(batch, Client.batch)  # it has its options and its description, in a thread of its own

    def blocking(self) -> Client:
        """Return the client, connected now if this is its first use."""
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    async def streams(self) -> Streams:
        """Return the reader of the events of all runs that coroutines of this event loop follow, on connections of its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._streams:
            client = await self.call(lambda client: client)
            if loop not in self._streams:  # another coroutine may have added it meanwhile
                redis = connect_async(client.redis_url, namespace=namespace_of(client.redis))
                streams = Streams(redis)
                self._streams[loop] = streams, loop.create_task(self._read(loop, streams, redis))
        return self._streams[loop][0]

    async def _read(self, loop: asyncio.AbstractEventLoop, streams: Streams, redis: Redis) -> None:
        """Read until the client is closed, or the event loop ends and cancels its tasks."""
        try:
            await streams.run()
        finally:
            del self._streams[loop]
            await redis.aclose()

    async def close(self) -> None:
        """Close the connections; runs go on. Coroutines of this event loop that wait for one get StreamsEnded."""
        if known := self._streams.get(asyncio.get_running_loop()):
            streams, reading = known
            streams.end()
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        if self._is_own and self._client is not None:
            await self.call(Client.close)
            self._client = None
        self._threads.shutdown(wait=False)

    async def connect(self) -> Self:
        """Connect, in a thread; any other call does so too. Raises as `Client`."""
        await self.call(lambda _: None)
        return self

    __aenter__ = connect

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
