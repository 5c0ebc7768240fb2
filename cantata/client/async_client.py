"""AsyncClient: the client for coroutines. Its methods are those of `Client`, called in threads; only waiting for a run is asynchronous."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, update_wrapper
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from celery import Celery

from cantata.client.client import Client
from cantata.client.run_service import RunService
from cantata.client.runs import ChainRun, Run, TurnRun
from cantata.models.definitions import Definitions
from cantata.models.events import RunEvent
from cantata.models.wire import RUN_OVER, ChainEvent, ChainResponse, RunResult
from cantata.state.redis.async_connection import Redis, connect_async
from cantata.state.runs.streams import Streams

THREADS = 8  # calls of Redis at once; each takes about a millisecond
READ_S = 5.0  # to read the result of a run that is over

Params = ParamSpec("Params")
Result = TypeVar("Result")
Handle = TypeVar("Handle")
Event = TypeVar("Event")
Blocking_co = TypeVar("Blocking_co", covariant=True)
RunT = TypeVar("RunT", bound=TurnRun | ChainRun)


class _InThreads(Generic[Blocking_co]):
    """An object whose methods are those of a blocking one, called in threads."""

    _threads: ThreadPoolExecutor
    _blocking: Callable[[], Blocking_co]

    async def call(
        self, function: Callable[Concatenate[Blocking_co, Params], Result], *args: Params.args, **options: Params.kwargs
    ) -> Result:
        """Call a function in a thread, with the blocking object and these arguments. It goes on if the waiting coroutine is cancelled."""
        call = partial(contextvars.copy_context().run, lambda: function(self._blocking(), *args, **options))
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def in_thread(
    method: Callable[Concatenate[Blocking_co, Params], Result],
) -> Callable[Concatenate[_InThreads[Blocking_co], Params], Coroutine[Any, Any, Result]]:
    """Return a method that calls a blocking one in a thread."""

    async def call(self: _InThreads[Blocking_co], /, *args: Params.args, **options: Params.kwargs) -> Result:
        return await self.call(method, *args, **options)

    update_wrapper(call, method)
    return call


def accepting(
    method: Callable[Concatenate[Client, Params], Result], handle: Callable[[AsyncClient, Result], Handle]
) -> Callable[Concatenate[AsyncClient, Params], Coroutine[Any, Any, Handle]]:
    """Return a method that calls a blocking one in a thread, and returns the asynchronous handle of its run."""

    async def call(self: AsyncClient, /, *args: Params.args, **options: Params.kwargs) -> Handle:
        return handle(self, await self.call(method, *args, **options))

    update_wrapper(call, method)
    return call


class AsyncRun(_InThreads[RunT]):
    """An accepted run, as `Run`. A coroutine that waits for it, or for its events, holds no thread."""

    def __init__(self, client: AsyncClient, run: RunT) -> None:
        self._client, self._threads, self._blocking = client, client._threads, lambda: run
        self.run_id = run.run_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.run_id!r})"

    status, record, steps, view = in_thread(Run.status), in_thread(Run.record), in_thread(Run.steps), in_thread(Run.view)
    cancel, signal, query = in_thread(Run.cancel), in_thread(Run.signal), in_thread(Run.query)
    waiting_steps = in_thread(Run.waiting_steps)

    async def _over(self, read: Callable[[RunT, float], Result], timeout_s: float | None) -> Result:
        """Read the result as soon as the run is over. Raises as `Run.wait`."""
        streams = await self._client.streams()
        if not await streams.wait_closed(self.run_id, timeout_s) and await self.status() not in RUN_OVER:
            raise TimeoutError(f"run {self.run_id} is not over after {timeout_s} s; it goes on")
        return await self.call(read, READ_S)

    async def _follow(
        self, after: int, timeout_s: float | None, read: Callable[[Sequence[RunEvent]], Awaitable[Sequence[Event]]]
    ) -> AsyncGenerator[Event, None]:
        """Yield what `read` returns for the events after an offset, as they come, up to `closed` or until `timeout_s` has passed."""
        loop, streams = asyncio.get_running_loop(), await self._client.streams()
        give_up = None if timeout_s is None else loop.time() + timeout_s
        if after and not await self._client.call(lambda client: RunService(client).has_events(self.run_id, after)):
            return
        with streams.follow(self.run_id, after=after) as follower:
            while events := await follower.events(None if give_up is None else max(0.0, give_up - loop.time())):
                for event in await read(events):
                    yield event
                after = events[-1].seq
                if events[-1].ends_run:
                    return
        for event in await read(await self.call(lambda run: list(run.log(after, timeout_s=0.0)))):  # those that were not read in time
            yield event

    def log(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> AsyncGenerator[RunEvent, None]:
        """Yield its events after `from_offset` as they come, until it is over."""

        async def unchanged(events: Sequence[RunEvent]) -> Sequence[RunEvent]:
            return events

        return self._follow(from_offset or 0, timeout_s, unchanged)


class AsyncTurnRun(AsyncRun[TurnRun]):
    """A run of a user turn."""

    so_far, events = in_thread(TurnRun.so_far), AsyncRun.log

    async def result(self, timeout_s: float | None = None) -> RunResult:
        """Wait until it is over and return its result. Raises TimeoutError past `timeout_s`; the run goes on."""
        return await self._over(TurnRun.result, timeout_s)


class AsyncChainRun(AsyncRun[ChainRun]):
    """A run of a chain request."""

    so_far = in_thread(ChainRun.so_far)

    async def result(self, timeout_s: float | None = None) -> ChainResponse:
        """Wait until it is over and return its response. Raises TimeoutError past `timeout_s`; the run goes on."""
        return await self._over(ChainRun.result, timeout_s)

    def events(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> AsyncGenerator[ChainEvent, None]:
        """Yield the events of its nodes after `from_offset` as they come, until it is over."""
        return self._follow(from_offset or 0, timeout_s, lambda events: self.call(ChainRun.node_events, events))


def handle_of(client: AsyncClient, run: TurnRun | ChainRun) -> AsyncTurnRun | AsyncChainRun:
    """Return the asynchronous handle of a run."""
    return AsyncChainRun(client, run) if isinstance(run, ChainRun) else AsyncTurnRun(client, run)


class AsyncClient(_InThreads[Client]):
    """A client for coroutines: each method does as that of `Client`, in one of `threads` threads. It connects at the first call.

    `await client.call(function, ...)` calls any function with the `Client`, such as one that reads its sessions or memory.
    """

    def __init__(
        self, redis_url: str | None = None, *, broker_url: str | None = None, config: str | Path | Definitions | None = None,
        namespace: str | None = None, app: Celery | None = None, threads: int = THREADS,
    ) -> None:  # fmt: skip
        self._make: Callable[[], Client] = partial(Client, redis_url, broker_url=broker_url, config=config, namespace=namespace, app=app)
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

    submit_turn = accepting(Client.submit_turn, AsyncTurnRun)
    submit_chain = accepting(Client.submit_chain, AsyncChainRun)
    run, fork, retry = accepting(Client.run, handle_of), accepting(Client.fork, handle_of), accepting(Client.retry, handle_of)
    runs, fleet_warnings, read_definitions = in_thread(Client.runs), in_thread(Client.fleet_warnings), in_thread(Client.read_definitions)

    @overload
    async def submit_workflow(
        self, workflow: str, given: str, *, session: str | None = None, timeout_s: float | None = None, idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncTurnRun: ...  # fmt: skip

    @overload
    async def submit_workflow(
        self, workflow: str | Callable[..., Any], given: Mapping[str, Any], *, timeout_s: float | None = None,
        idempotency_key: str | None = None, labels: Mapping[str, str] | None = None,
    ) -> AsyncChainRun: ...  # fmt: skip

    async def submit_workflow(
        self, workflow: str | Callable[..., Any], given: str | Mapping[str, Any], *, session: str | None = None,
        timeout_s: float | None = None, idempotency_key: str | None = None, labels: Mapping[str, str] | None = None,
    ) -> AsyncTurnRun | AsyncChainRun:  # fmt: skip
        """Submit to a workflow, as `Client.submit_workflow` does."""
        submit: Callable[..., TurnRun | ChainRun] = Client.submit_workflow
        options: dict[str, Any] = {"session": session, "timeout_s": timeout_s, "idempotency_key": idempotency_key, "labels": labels}
        return handle_of(self, await self.call(submit, workflow, given, **options))

    def _blocking(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    async def streams(self) -> Streams:
        """Return the reader of the events of all runs that coroutines of this event loop follow; it has a connection of its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._streams:
            await self.connect()
            if loop not in self._streams:  # another coroutine may have added it meanwhile
                client = self._blocking()
                redis = connect_async(client.redis_url, namespace=client.app.namespace)
                streams = Streams(redis)
                self._streams[loop] = streams, loop.create_task(self._read(loop, streams, redis))
        return self._streams[loop][0]

    async def _read(self, loop: asyncio.AbstractEventLoop, streams: Streams, redis: Redis) -> None:
        """Read until the client is closed, or the event loop ends and cancels its tasks."""
        try:
            await streams.run()
        finally:
            streams.end()
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
        if self._client is None:
            await self.call(lambda _: None)
        return self

    __aenter__ = connect

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
