"""Runs of chains: submission, waiting, cancellation; and the client that all chains of this process share."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.config.user_code.function_names import refuse_in_worker
from cantata.errors import RunError
from cantata.flows.definitions import Definitions
from cantata.flows.events import AttemptFailed, RunEvent
from cantata.flows.wire import RunResult, TurnRequest
from cantata.operation.embedded import Home, attach
from cantata.settings import settings
from cantata.values import JsonValue

MAX_CONCURRENT_RUNS = 200
"""Runs that one process waits for concurrently; each occupies a thread and a connection, and 1,024 open files are a usual limit."""

log = logging.getLogger("cantata.frontends.promptchain")

_clients: dict[tuple[str | None, str | None], Client] = {}
_clients_lock = threading.Lock()
_waiting = ThreadPoolExecutor(MAX_CONCURRENT_RUNS, thread_name_prefix="promptchain")

EventListener = Callable[[TurnRun, RunEvent], None]
"""Called with each event of a run, in the thread that waits for it."""


class TurnCall:
    """A turn that is submitted and waited for. Another thread may cancel it."""

    def __init__(
        self,
        definitions: Definitions,
        turn: TurnRequest,
        *,
        labels: Mapping[str, str] | None = None,
        on_event: EventListener | None = None,
        source: str = "PromptChain",
    ) -> None:
        self._definitions = definitions
        self._turn = turn
        self._labels = labels
        self._on_event = on_event
        self._source = source
        self._run: TurnRun | None = None
        self._is_cancelled = False

    def result(self) -> RunResult:
        """Submit the turn and wait for its result; Ctrl-C cancels it."""
        try:
            return self._result()
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise

    async def result_async(self) -> RunResult:
        """Like `result`, for coroutines; cancelling it cancels the run."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(_waiting, self._result)
        except asyncio.CancelledError:
            loop.run_in_executor(None, self.cancel)
            raise

    def cancel(self) -> None:
        """Cancel the run, or prevent it if it is not submitted yet."""
        self._is_cancelled = True
        if self._run:
            self._run.cancel()

    def _result(self) -> RunResult:
        client = shared_client(self._source).with_definitions(self._definitions)
        self._run = run = client.submit_turn(**self._turn.model_dump(exclude_defaults=True), labels=self._labels)
        if self._is_cancelled:  # while it was submitted
            run.cancel()
        if self._on_event:
            for event in run.events():
                self._on_event(run, event)
        result = run.result()
        for warning in result.warnings:
            log.warning("run %s: %s", run.run_id, warning)
        return result


def answer_of(result: RunResult) -> JsonValue:
    """Return the answer of a run. Raises RunError if it did not succeed."""
    if result.status != "succeeded":
        message, code = (
            (result.error.message, result.error.code)
            if result.error
            else (f"the run is {result.status}", result.status)
        )
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
