"""Runs of chains: submission, waiting, cancellation; and the client that all chains of this process share."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from cantata.client.client import Client
from cantata.client.runs import Run, TurnRun
from cantata.config.user_code.function_names import refuse_in_worker
from cantata.embedded import Home, attach
from cantata.errors import RunError
from cantata.models.definitions import Definitions
from cantata.models.events import AttemptFailed, RunEvent
from cantata.models.values import JsonValue
from cantata.models.wire import RunResult, TurnRequest
from cantata.settings import settings

MAX_CONCURRENT_RUNS = 200
"""Runs that one process waits for concurrently; each occupies a thread and a connection, and 1,024 open files are a usual limit."""

T = TypeVar("T")
RunT = TypeVar("RunT", bound=Run)

log = logging.getLogger("cantata.frontends.promptchain")

_clients: dict[tuple[str | None, str | None], Client] = {}
_clients_lock = threading.Lock()
_waiting = ThreadPoolExecutor(MAX_CONCURRENT_RUNS, thread_name_prefix="promptchain")

EventListener = Callable[[TurnRun, RunEvent], None]
"""Called with each event of a run, in the thread that waits for it."""


@dataclass(frozen=True)
class TurnCall:
    """A turn that is submitted and waited for."""

    definitions: Definitions
    turn: TurnRequest
    labels: Mapping[str, str] | None = None
    on_event: EventListener | None = None
    source: str = "PromptChain"

    def result(self) -> RunResult:
        """Submit the turn and wait for its result; Ctrl-C cancels it."""
        run = self._submit()
        try:
            return self._wait(run)
        except (KeyboardInterrupt, SystemExit):
            run.cancel()
            raise

    async def result_async(self) -> RunResult:
        """Like `result`, for coroutines; cancelling it cancels the run."""
        return await call_in_threads(self._submit, self._wait)

    def _submit(self) -> TurnRun:
        client = shared_client(self.source).with_definitions(self.definitions)
        return client.submit_turn(**self.turn.model_dump(exclude_defaults=True), labels=self.labels)

    def _wait(self, run: TurnRun) -> RunResult:
        if self.on_event:
            for event in run.events():
                self.on_event(run, event)
        result = run.result()
        for warning in result.warnings:
            log.warning("run %s: %s", run.run_id, warning)
        return result


async def call_in_threads(submit: Callable[[], RunT], wait: Callable[[RunT], T]) -> T:
    """Submit a run and wait for it, in threads; cancelling this cancels the run, or prevents it if it is not submitted yet."""
    submitting = _waiting.submit(submit)
    try:
        run = await asyncio.wrap_future(submitting)
        return await asyncio.get_running_loop().run_in_executor(_waiting, wait, run)
    except asyncio.CancelledError:
        submitting.add_done_callback(_cancel_when_submitted)
        raise


def _cancel_when_submitted(submitting: Future[RunT]) -> None:
    """Cancel the run that was submitted, in a thread of its own."""
    if not submitting.cancelled() and submitting.exception() is None:
        threading.Thread(target=submitting.result().cancel).start()


def answer_of(result: RunResult) -> JsonValue:
    """Return the answer of a run. Raises RunError if it did not succeed."""
    if result.status != "succeeded":
        message, code = (result.error.message, result.error.code) if result.error else (f"the run is {result.status}", result.status)
        raise RunError(message, run_id=result.run_id, status=result.status, code=code)
    return result.output


def log_event(_: TurnRun, event: RunEvent) -> None:
    """Log an event of a run."""
    log.info("%s", _describe(event))


def enable_log_output() -> None:
    """Write the log events of chains to standard error, unless the program has configured logging."""
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


def shared_client(source: str = "PromptChain") -> Client:
    """Return the client of REDIS_URL, else of the stack that `submit up` keeps in this folder, else of one that ends with this process.

    Raises ConfigError in a worker, which names the class `source`.
    """
    refuse_in_worker(source)
    configured = settings()
    with _clients_lock:
        stack = None if configured.redis_url else attach()
        urls = (stack.url if stack else configured.redis_url, configured.broker_url)
        if urls not in _clients:
            _clients[urls] = _create_client(urls[0])
        return _clients[urls]


def _create_client(url: str | None) -> Client:
    if not url:
        log.warning(
            "neither REDIS_URL nor a stack of `submit up` here: the first answer waits until one has started in %s for this process",
            Home().path,
        )
    client = Client(url, config=Definitions()) if url else Client.embedded(config=Definitions())
    atexit.register(_close, client, os.getpid())
    for warning in [*client.warnings, *(client.fleet_warnings() if url else [])]:
        log.warning("%s", warning)
    return client


def _close(client: Client, owner: int) -> None:
    if os.getpid() == owner:  # a fork must not end the stack of the process it came from
        client.close()


def _describe(event: RunEvent) -> str:
    """Describe an event for people."""
    more = f": {event.explanation}" if isinstance(event, AttemptFailed) else ""
    attempt = f" (attempt {event.attempt})" if event.attempt and event.attempt > 1 else ""
    return f"run {event.run_id}: {event.step or 'run'} {event.type}{attempt}{more}"
