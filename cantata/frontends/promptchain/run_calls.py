"""Runs for chains: submitted, waited for, called off; one client for all chains of this process, and the stack behind it."""

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
from cantata.config.user_code.function_names import IN_WORKER
from cantata.embedded import attach
from cantata.errors import ConfigError, RunError
from cantata.models.definitions import Definitions
from cantata.models.events import AttemptFailed, RunEvent
from cantata.models.values import JsonValue
from cantata.models.wire import RunResult, TurnRequest
from cantata.settings import settings

MAX_CONCURRENT_RUNS = 200
"""Runs that one process waits for at once; each holds a thread and a connection, and 1,024 open files are a usual limit."""

log = logging.getLogger("cantata.frontends.promptchain")

_clients: dict[tuple[str | None, str | None], Client] = {}
_clients_lock = threading.Lock()
_waiting = ThreadPoolExecutor(MAX_CONCURRENT_RUNS, thread_name_prefix="promptchain")

EventListener = Callable[[TurnRun, RunEvent], None]
"""Is told each event of a run, in the thread that waits for it."""


class TurnCall:
    """A turn that is asked and waited for. It may be called off from another thread."""

    def __init__(
        self, definitions: Definitions, turn: TurnRequest, *, labels: Mapping[str, str] | None = None, on_event: EventListener | None = None
    ) -> None:
        self._definitions = definitions
        self._turn = turn
        self._labels = labels
        self._on_event = on_event
        self._run: TurnRun | None = None
        self._is_cancelled = False

    def result(self) -> RunResult:
        """Submit it and wait until it is over; Ctrl-C calls it off."""
        try:
            return self._result()
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise

    async def result_async(self) -> RunResult:
        """The same, beside other coroutines; when it is cancelled it is called off."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(_waiting, self._result)
        except asyncio.CancelledError:
            loop.run_in_executor(None, self.cancel)
            raise

    def cancel(self) -> None:
        """End the run: nobody else knows of it."""
        self._is_cancelled = True
        if self._run:
            self._run.cancel()

    def _result(self) -> RunResult:
        client = shared_client().with_definitions(self._definitions)
        self._run = run = client.submit_turn(**self._turn.model_dump(exclude_defaults=True), labels=self._labels)
        if self._is_cancelled:  # meanwhile
            run.cancel()
        if self._on_event:
            for event in run.events():
                self._on_event(run, event)
        result = run.result()
        for warning in result.warnings:
            log.warning("run %s: %s", run.run_id, warning)
        return result


def answer_of(result: RunResult) -> JsonValue:
    """What a run answered. Raises RunError if it did not succeed."""
    if result.status != "succeeded":
        message, code = (result.error.message, result.error.code) if result.error else (f"the run is {result.status}", result.status)
        raise RunError(message, run_id=result.run_id, status=result.status, code=code)
    return result.output


def log_event(_: TurnRun, event: RunEvent) -> None:
    """Log what happened in a run."""
    log.info("%s", _describe(event))


def enable_log_output() -> None:
    """Have the log events of chains shown: on standard error, unless the program has set up logging."""
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


def shared_client() -> Client:
    """The client at REDIS_URL, else at the stack that `submit up` keeps in this folder, else at one that ends with this process."""
    if os.environ.get(IN_WORKER):
        raise ConfigError(
            "this is a worker, which imported this module for one of its functions, and workers must not wait for chains; "
            "put what runs a chain under `if __name__ == '__main__':`, and make a chain within a chain one of its instructions",
            source="PromptChain",
        )
    said = settings()
    with _clients_lock:
        kept = None if said.redis_url else attach()
        place = (kept.url if kept else said.redis_url, said.broker_url)
        if place not in _clients:
            _clients[place] = _create_client(place[0])
        return _clients[place]


def _create_client(url: str | None) -> Client:
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
