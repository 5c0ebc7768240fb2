"""The user's own Celery application: found, imported and asked for its settings. Nothing in it is changed.

A name, or a value given to `Client` and `install`, may be a proxy: `celery.current_app`, an object of werkzeug or Django. A proxy may stand
for another application later, so it is resolved here, once, before anything else is asked of it.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from celery import Celery, Task
from celery.app.utils import find_app

from cantata.errors import ConfigError
from cantata.operation import exits
from cantata.settings import settings

VARIABLE = "CANTATA_APP"

_REDIS = ("redis://", "rediss://", "redis+socket://")
_BROKER_SETTINGS = (
    "broker_use_ssl", "broker_login_method", "broker_heartbeat", "broker_connection_timeout", "broker_failover_strategy"
)  # fmt: skip

_lock = threading.RLock()


def configured() -> Celery | None:
    """Return the application that CANTATA_APP names; None if it names none. Raises ConfigError if it cannot be imported."""
    name = os.environ.get(
        VARIABLE, ""
    ).strip()  # not by `settings`, which takes longer: it is asked before each call of a function
    with _lock:
        return find(name) if name else None


def activate() -> Celery | None:
    """Return the same application with its tasks imported, as this process's and thread's current one.

    Then the user's code in this process sends its own tasks, those of `@shared_task` too, with the user's application.
    """
    app = configured()
    if app is not None:
        with _lock:
            import_tasks(app)
        app.set_current()
    return app


def title(app: Celery) -> str:
    """Return the name of the application in messages."""
    return settings().app or str(app.main)


def task_named(name: str) -> Task[Any, Any] | None:
    """Return a task of the application; None if it is not registered here: only the user's workers have to know it."""
    app = activate()
    return app.tasks.get(name) if app else None


def queue_of(app: Celery, name: str, queue: str | None = None) -> str:
    """Return the queue to which a task goes: the given one, else that of its own options, the routes or the default; empty if unknown."""
    task: Any = app.tasks.get(name)
    own = {option: getattr(task, option, None) for option in ("queue", "exchange", "routing_key")}
    options = {option: value for option, value in {**own, **({"queue": queue} if queue else {})}.items() if value}
    try:
        found = app.amqp.router.route(options, name, (), {}, task_type=task).get("queue") or app.conf.task_default_queue
    except Exception:  # noqa: BLE001  # of a route that is code, and reads the arguments: only a message lacks the name
        return ""
    return str(getattr(found, "name", found))


def close_old_connections() -> None:
    """Close this thread's database connections that failed or are too old, as Django does between requests."""
    django = sys.modules.get("django.db")
    if django is not None and sys.modules["django.conf"].settings.configured:
        django.close_old_connections()


@cache
def find(name: str) -> Celery:
    """Return the application that a name such as `shop.celery:app` stands for, as `celery -A` does.

    The name may also be that of a proxy, of a Flask application that has one (`app.extensions["celery"]`), or of a function without
    required parameters that returns an application (`shop:create_app`, `shop:create_app()`). Raises ConfigError if it cannot be imported.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `celery -A` does
    try:
        found = _find(name.removesuffix("()"))
        if not isinstance(found, Celery) and callable(found) and not _is_web_app(found):
            found = _made_by(found, name)
        if _is_web_app(found):
            found = found.extensions["celery"]
    except ConfigError:
        raise
    except BaseException as error:  # whatever a user's module raises
        if exits.is_of_signal(error):
            raise
        raise ConfigError(
            f"the Celery application {name!r} cannot be imported: {_text(error)}", source=VARIABLE
        ) from error
    return resolve(found, repr(name), VARIABLE)


def resolve(found: object, what: str = "the Celery application", source: str = "") -> Celery:
    """Return the application itself, of a proxy the one that it stands for now. Raises ConfigError if it is none that has users' tasks.

    Args:
        what: The value in messages.
        source: The setting that has it.
    """
    try:
        app = (
            getattr(found.set_current, "__self__", None) if isinstance(found, Celery) else found
        )  # a proxy's method is its object's
    except Exception as error:  # of a proxy that stands for nothing yet, or for something that cannot be made
        raise ConfigError(
            f"{what} is a proxy of type {type(found).__name__} for nothing: {_text(error)}", source=source
        ) from error
    if not issubclass(type(app), Celery):
        raise ConfigError(f"{what} is of type {type(app).__name__}; expected a Celery application", source=source)
    assert isinstance(app, Celery)
    if getattr(app, "is_cantata", False):
        raise ConfigError(
            f"{what} is Cantata's own Celery application; expected the one of your project", source=source
        )
    return app


def _find(name: str) -> Any:
    found: object = find_app(name)
    module = sys.modules.get(name)
    if (
        module is not None
        and not issubclass(type(found), Celery)
        and not any(found is getattr(module, each, None) for each in _OFTEN)
    ):
        own = (each for each in vars(module).values() if issubclass(type(each), Celery))
        return next(
            own, found
        )  # Celery takes the first name that looks like one, such as that of an imported `current_app`
    return found


_OFTEN = ("app", "celery")
"""The names under which Celery looks for a module's application first."""


def _is_web_app(found: object) -> bool:
    """Return whether an object is an application of Flask or Quart that has a Celery application."""
    extensions = getattr(found, "extensions", None)
    return isinstance(extensions, Mapping) and "celery" in extensions


def _made_by(function: Any, name: str) -> Any:
    """Return the application that a function makes. Raises ConfigError for one that needs arguments."""
    parameters = inspect.signature(function).parameters.values()
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        message = f"{name!r} is a function that needs {', '.join(needed)}; name the application that it returns, in a module that calls it"
        raise ConfigError(message, source=VARIABLE)
    return function()


@cache
def import_tasks(app: Celery) -> None:
    """Import the tasks of an application, as its own worker does. Raises ConfigError if they cannot be imported."""
    try:
        app.loader.import_default_modules()  # has Django set itself up, and finds tasks
    except BaseException as error:  # whatever a user's module raises
        if exits.is_of_signal(error):
            raise
        raise ConfigError(
            f"the tasks of {settings().app!r} cannot be imported: {_text(error)}", source=VARIABLE
        ) from error
    app.finalize()
    app.set_default()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# --- settings -------------------------------------------------------------------------------------------------------


def redis_url_of(app: Celery) -> str | None:
    """Return the address of the Redis that the application uses as its broker, else as its result backend; None if it uses none."""
    urls = (_broker_url(app), str(app.conf.result_backend or ""))
    return next((url for url in urls if url.startswith(_REDIS) and ";" not in url), None)


def broker_url_of(app: Celery) -> str:
    """Return the address of the application's broker. Raises ConfigError for one that needs more settings than its address, and for SQS."""
    url = _broker_url(app)
    if url.startswith("sqs://"):
        raise ConfigError(
            "the application's broker is SQS, which cannot carry our own messages; set CANTATA_BROKER_URL to a Redis or RabbitMQ"
        )
    if url.startswith("sentinel://") or (url.startswith(_REDIS) and (app.conf.broker_use_ssl or ";" in url)):
        raise ConfigError(
            "the application's broker has settings beside its address; set CANTATA_BROKER_URL to its full address"
        )
    return url


def has_broker(app: Celery, url: str) -> bool:
    """Return whether an address is that of the application's own broker."""
    return url == _broker_url(app)


def _broker_url(app: Celery) -> str:
    given = app.conf.broker_write_url or app.conf.broker_url or "amqp://"
    return given if isinstance(given, str) else ";".join(given)


def check_queues(app: Celery, namespace: str) -> None:
    """Raise ConfigError if the application declares a queue of this namespace: each side would take, and lose, messages of the other."""
    taken = sorted({name for name in _queue_names(app) if name.startswith(f"{namespace}.")})
    if taken:
        message = (
            f"the Celery application {title(app)!r} uses the queue {taken[0]!r}, which is named like those of Cantata"
        )
        raise ConfigError(
            f"{message}; rename it, or set CANTATA_NAMESPACE to another name than {namespace!r}", source=VARIABLE
        )


def _queue_names(app: Celery) -> Iterator[str]:
    yield str(app.conf.task_default_queue or "")
    declared = app.conf.task_queues or ()
    for each in declared:  # names, queues, or a mapping by name
        yield each if isinstance(each, str) else str(getattr(each, "name", ""))


def settings_beside(app: Celery, url: str) -> Mapping[str, object]:
    """Return the settings of our own Celery app with which it shares the broker and the task events of the user's application.

    `url` is the address of our broker; only the user's own one has its events.
    """
    if not has_broker(app, url):
        return {}
    shared = {"event_exchange": app.conf.event_exchange}
    return shared if url.startswith(_REDIS) else {**shared, **{name: app.conf[name] for name in _BROKER_SETTINGS}}
