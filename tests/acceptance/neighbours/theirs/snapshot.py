"""The state of a Celery app and of the process that imported it, as values for JSON. Runs in environments of others: no import of ours."""

import logging
import os
import signal
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

from celery import Celery, signals
from celery.utils.dispatch import Signal

OPTIONS = (
    "abstract", "acks_late", "acks_on_failure_or_timeout", "bind", "default_retry_delay", "exchange", "expires", "ignore_result",
    "max_retries", "priority", "queue", "rate_limit", "reject_on_worker_lost", "resultrepr_maxsize", "routing_key",
    "send_events", "serializer", "soft_time_limit", "store_errors_even_if_ignored", "throws", "time_limit", "track_started", "trail",
    "typing",
)  # fmt: skip


def snapshot(app: Celery) -> dict[str, Any]:
    """Return what code that is added to a project could change without being asked."""
    backend: Any = app.backend
    return {
        "app": [
            app.main,
            *(name_of(each) for each in (type(app), app.Task, type(app.loader), type(app.amqp), type(app.log))),
        ],
        "backend": [name_of(type(backend)), repr(backend.serializer), repr(backend.expires)],
        "conf": {str(name): _setting(name, value) for name, value in app.conf.table(with_defaults=True).items()},
        "queues": {
            name: [queue.exchange.name, queue.exchange.type, queue.routing_key]
            for name, queue in app.amqp.queues.items()
        },
        "routes": {name: repr(app.amqp.router.route({}, name)) for name in sorted(app.tasks)},
        "tasks": {name: _task(task) for name, task in app.tasks.items()},
        "receivers": {name: _receivers(each) for name, each in vars(signals).items() if isinstance(each, Signal)},
        "steps": [sorted(map(name_of, app.steps[part])) for part in ("worker", "consumer")],
        "process": {
            "environment": sorted(os.environ),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "sockets": len(_sockets()),
            "handlers": {
                str(number): repr(signal.getsignal(number))
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
            },
            "hooks": [name_of(sys.excepthook), name_of(threading.excepthook), name_of(sys.unraisablehook)],
            "logging": [
                logging.root.level,
                name_of(logging.getLoggerClass()),
                sorted(map(repr, logging.root.handlers)),
            ],
            "path": sys.path[1:],
        },
    }


def name_of(thing: Any) -> str:
    """Return the name of a class or function, of its module too."""
    return f"{thing.__module__}.{thing.__qualname__}"


def _setting(name: str, value: Any) -> Any:
    if name == "include":  # which a worker makes of a set
        return sorted(map(str, value))
    return list(map(str, value)) if isinstance(value, tuple) else repr(value)


def _task(task: Any) -> dict[str, Any]:
    options: dict[str, Any] = {name: repr(getattr(task, name, None)) for name in OPTIONS}
    return {
        **options,
        "bases": [name_of(base) for base in type(task).__mro__[1:]],
        "backend": name_of(type(task.backend)),
    }


def _receivers(each: Any) -> list[str]:
    found = (ref() if isinstance(ref, weakref.ref) else ref for _, ref in each.receivers)
    return sorted(getattr(receiver, "__qualname__", repr(type(receiver))) for receiver in found)


def _sockets() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder that is listed is open too, and closed again
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [target for target in found if target.startswith("socket:")]
