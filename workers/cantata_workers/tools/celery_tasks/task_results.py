"""Outcomes of the user's tasks: read from the application's result backend, and turned into the outcome of a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import ContentDisallowed, DecodeError, SerializerNotInstalled

from cantata.engine.dispatch import user_app
from cantata.errors import ConfigError, StepError
from cantata.flows.graph import Outcome
from cantata.operation import exits
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue, Usage
from cantata_workers.tools import schemas

WORKER_LOST, TIMEOUT, UNREADABLE = "worker_lost", "timeout", "unreadable_result"
LOST_WORKER = "WorkerLostError"  # Celery's name of a task's error if its process died
LATE = "LATE"  # the state of a task without a result after its time limit, which is then its error
DAMAGED = (DecodeError, ContentDisallowed, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Raised by the decoding of a result that is no result, or is nested too deeply."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The end of a task, as its worker reported it; or that it is late."""

    state: str
    """SUCCESS, FAILURE, REVOKED or LATE."""
    value: JsonValue = None
    error_type: str = ""
    error: str = ""

    def outcome(self, task: str, known: Collection[str] = (), queue: str = "") -> Outcome:
        """Return the outcome of the step that called `task`. Raises StepError if the task failed.

        `known` are the names of the application's tasks, of which one may have been meant; `queue` is where it was sent, if that is known.
        """
        its_queue = f"queue {queue!r}, to which it was sent" if queue else "its queue"
        if self.state == states.SUCCESS:
            return Outcome(output=schemas.jsonable(self.value), usage=Usage(tool_calls=1))
        if self.state == LATE:
            raise StepError(
                f"task {task} has not ended within {self.error} (its timeout_s, which counts its time in the queue) and is revoked: "
                f"no worker serves {its_queue}, its worker was lost, or it takes longer and may still run",
                code=TIMEOUT,
                retryable=True,
            )
        if self.state == states.REVOKED and self.error == "expired":
            raise StepError(
                f"task {task} was not begun within its time limit; does a worker serve {its_queue}?",
                code=TIMEOUT,
                retryable=True,
            )
        if self.state == states.REVOKED:
            raise StepError(f"task {task} was revoked", code="revoked")
        if self.error_type == "NotRegistered":
            raise StepError(
                f"no task {task!r} is registered with the worker that got it{did_you_mean(task, known)}",
                code="unknown_task",
            )
        if self.error_type == UNREADABLE:  # not retryable: the task has ended
            raise StepError(
                f"the result of task {task} cannot be read: {self.error}; "
                "our worker's application needs the result_serializer and result_accept_content of yours",
                code=UNREADABLE,
            )
        code = WORKER_LOST if self.error_type == LOST_WORKER else "tool_error"
        raise StepError(
            f"task {task} raised {self.error_type}: {self.error}",
            code=code,
            retryable=self.error_type not in exits.NAMES,
        )


def has_results(app: Celery) -> bool:
    """Return whether the application keeps results where other processes can read them."""
    return not isinstance(app.backend, DisabledBackend | RPCBackend) and "memory://" not in str(app.conf.result_backend)


def subscribe(app: Celery, pattern: str) -> Callable[[], dict[str, TaskResult]]:
    """Subscribe to the results of the tasks whose ids match a pattern.

    Return a function that waits for an announcement for at most a second, and returns the result by its task's id.
    """
    backend: Any = app.backend
    subscription = backend.client.pubsub()

    def receive() -> dict[str, TaskResult]:
        message = subscription.get_message(ignore_subscribe_messages=True, timeout=1.0)
        with suppress(*DAMAGED):  # the next look at it says so
            meta = backend.decode(message["data"]) if message else {}
            return {meta["task_id"]: result} if meta and (result := result_of(meta)) else {}
        return {}

    subscription.psubscribe(backend.get_key_for_task(pattern))
    return receive


def check(app: Celery) -> None:
    """Raise ConfigError if steps cannot call the tasks of an application."""
    if app.conf.task_always_eager:
        raise ConfigError(
            f"{app.main!r} has task_always_eager: its tasks run where they are called and no worker gets them; unset it for these workers"
        )
    serializer = app.conf.result_serializer
    try:
        backend: Any = app.backend  # made now, and connected later
        keeps_results = has_results(app)
        if keeps_results and serializer != "pickle":
            backend.decode(backend.encode(None))
    except (ImportError, ImproperlyConfigured) as error:
        raise ConfigError(
            f"{app.main!r} has a result backend that needs a package: {error}; install it beside these workers too"
        ) from error
    except (ContentDisallowed, KeyError, SerializerNotInstalled) as error:
        reason = "it is not registered" if isinstance(error, KeyError) else error
        raise ConfigError(
            f"{app.main!r} stores results with {serializer!r}, which cannot be read here: {reason}. Install its package here and name it "
            "in result_accept_content, or have an application without a result backend, whose tasks report their ends"
        ) from error
    if keeps_results and serializer == "pickle":
        raise ConfigError(
            f"{app.main!r} stores results with pickle, which may execute code when it is read; set result_serializer to 'json'"
        )


def read(app: Celery, task_ids: Iterable[str]) -> dict[str, TaskResult]:
    """Return the results of those tasks that have ended. Raises whatever the backend raises while it is away."""
    backend: Any = app.backend
    ids = list(task_ids)
    if isinstance(backend, RedisBackend):
        payloads = backend.mget([backend.get_key_for_task(task_id) for task_id in ids]) if ids else []
        reads = {
            task_id: partial(backend.decode, payload) for task_id, payload in zip(ids, payloads, strict=True) if payload
        }
    else:
        user_app.close_old_connections()  # a backend may use those of Django
        reads = {task_id: partial(backend.get_task_meta, task_id, cache=False) for task_id in ids}
    return {task_id: result for task_id, meta in reads.items() if (result := _decoded(meta))}


def _decoded(meta: Callable[[], Mapping[str, Any]]) -> TaskResult | None:
    try:
        return result_of(meta())
    except DAMAGED as error:
        return TaskResult(states.FAILURE, error_type=UNREADABLE, error=f"{type(error).__name__}: {error}")


def result_of(meta: Mapping[str, Any]) -> TaskResult | None:
    """Return a result as a backend stores it; None if the task has not ended."""
    state, value = meta["status"], meta.get("result")
    if state not in states.READY_STATES:
        return None
    if state == states.SUCCESS:
        return TaskResult(state, value)
    if isinstance(value, BaseException):
        return TaskResult(
            state, error_type=type(value).__name__, error=_message(type(value).__name__, meta) or str(value)
        )
    if isinstance(value, Mapping):
        texts = value.get("exc_message") or ()
        message = texts if isinstance(texts, str) else ", ".join(map(str, texts))
        return TaskResult(
            state, error_type=str(value.get("exc_type")), error=_message(str(value.get("exc_type")), meta) or message
        )
    return TaskResult(state, error_type="Exception", error=str(value))


def _message(error_type: str, meta: Mapping[str, Any]) -> str:
    """Return what an exception says of itself, from its traceback; empty without one.

    A result has only the arguments of an exception, which are not its message if it has an `__init__` or `__str__` of its own.
    """
    *_, end = re.split(r"^  File .*$", str(meta.get("traceback") or ""), flags=re.MULTILINE)
    found = re.search(rf"^(?:[\w.]+\.)?{re.escape(error_type)}: ", end, re.MULTILINE)
    return end[found.end() :].strip() if found else ""
