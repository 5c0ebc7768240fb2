"""The Celery app: its settings, the messages of a canvas, and chords whose join the ledger decides."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import structlog
from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.canvas import chain, chord, group
from kombu import Connection, exceptions
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.uuid import uuid
from redis import Redis
from redis.exceptions import RedisError

from cantata.engine.dispatch import user_app
from cantata.engine.dispatch.transport import FIRST
from cantata.engine.publisher import COORDINATOR
from cantata.errors import ConfigError, UnavailableError
from cantata.flows import canvas
from cantata.flows.canvas import Canvas, MessageHead
from cantata.flows.graph import START, Spec
from cantata.ledger.records import Ready
from cantata.ledger.redis import clock
from cantata.ledger.redis.address import celery_url, parse, shown
from cantata.ledger.redis.redis_errors import reason
from cantata.operation import fault_points
from cantata.operation.extras import NO_BROKER
from cantata.settings import DEFAULT_NAMESPACE, namespace_named

log = structlog.get_logger(__name__)

PLAIN_OPTIONS = {
    "argsrepr", "chain", "chord", "group_id", "group_index", "headers", "ignore_result", "kwargsrepr", "parent_id", "priority", "queue",
    "result_cls", "root_id", "serializer", "task_id", "task_type", "time_limit",
}  # fmt: skip
"""The options that our messages have, and those that Celery adds to each of its own."""

_Sent = tuple[str, tuple[Any, ...], dict[str, Any]]  # the name of a task, its arguments, its options

TRANSPORTS = {
    "redis": "cantata.engine.dispatch.transport:Transport",
    "rediss": "cantata.engine.dispatch.transport:Transport",
    "socket": "cantata.engine.dispatch.transport:SocketTransport",
    "sentinel": "cantata.engine.dispatch.transport:SentinelTransport",
}
TRANSPORT_ALIASES["socket"] = TRANSPORTS[
    "socket"
]  # `celery inspect conf`, which Flower calls, makes a connection of `broker_url` alone


class LedgerBackend(DisabledBackend):
    """Stores no results and waits for none; sends a chord's join when the ledger made it ready."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Subscribe to nothing: no result will come."""

    def remove_pending_result(self, result: Any) -> Any:
        """Nothing is pending."""
        return result

    def apply_chord(self, header_result_args: Any, body: Any, **options: Any) -> None:
        """Prepare nothing: the ledger counts."""

    def on_chord_part_return(
        self, request: Any, state: Any, result: Any, propagate: Any = None, **options: Any
    ) -> None:
        """Send the join if this part's commit made it ready."""
        if state == states.SUCCESS and result == "joined" and request.chord:
            fault_points.at("chord-joined")
            self.app.signature(request.chord).apply_async()  # type: ignore[attr-defined]  # every backend has its app


def make_app(
    redis_url: str, broker_url: str | None = None, *, namespace: str | None = None, beside: Celery | None = None
) -> App:
    """Return a Celery app for runs stored at `redis_url` and messages sent through `broker_url`.

    If that is None, they go through the broker of the user's application `beside`, or else through the same Redis. The app's names in the
    broker begin with `namespace`, or with CANTATA_NAMESPACE.
    """
    if beside is not None:
        broker_url = broker_url or user_app.broker_url_of(beside)
    app = App("cantata")
    app.namespace = namespace_named(namespace)
    app.own_broker = shown(broker_url or "")
    app.conf.update(_broker(broker_url or redis_url, app.namespace))
    app.conf.update(
        result_backend=App.backend_cls,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # a Redis that refuses its password now may accept it later
        broker_pool_limit=20,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_create_missing_queues=True,
        task_default_queue=app.broker_queue("coordinator"),
        control_exchange=f"{app.namespace}:control",  # with a colon, which no queue of steps can have
        event_exchange=f"{app.namespace}:events",
        event_queue_prefix=f"{app.namespace}:events",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_lost_wait=0.0,
        worker_send_task_events=os.environ.get("CANTATA_TASK_EVENTS", "1") == "1",
        worker_cancel_long_running_tasks_on_connection_loss=False,
        event_queue_expires=60,
        enable_utc=True,
    )
    if beside is not None and broker_url is not None:
        app.conf.update(user_app.settings_beside(beside, broker_url))
        if user_app.has_broker(beside, broker_url):
            user_app.check_queues(beside, app.namespace)
    return app


def _broker(url: str, namespace: str) -> dict[str, Any]:
    """Return Celery's settings for the broker at this URL. Raises ConfigError if it cannot carry messages."""
    if url == NO_BROKER:
        raise ConfigError(
            f"CANTATA_BROKER_URL is {NO_BROKER!r}, which is for programs that submit runs; name the broker, or unset it here"
        )
    if "+cluster://" in url:
        raise ConfigError(
            "Celery cannot use a Redis Cluster as its broker: set CANTATA_BROKER_URL to a single Redis, to Sentinels or to RabbitMQ"
        )
    broker = celery_url(url).removeprefix("redis+")
    transport = TRANSPORTS.get(broker.partition(":")[0])
    if transport is None:
        _check_known(broker)
    settings: dict[str, Any] = {
        "broker_url": broker,
        "broker_transport": transport,
        "broker_transport_options": {
            "ack_emulation": False,
            "max_connections": 1000,
        },  # the ledger's sweep recovers lost messages
    }
    if transport is not None:
        settings["broker_transport_options"] |= {
            "keyprefix_queue": f"{namespace}:binding.%s",
            "keyprefix_binding_permanent": f"{namespace}:binding_permanent.%s",
            "keyprefix_binding_deadlines": f"{namespace}:binding_deadlines",
        }
    if broker.startswith("sentinel://"):
        settings["broker_transport_options"]["address"] = parse(url)
    return settings


def _check_known(url: str) -> None:
    try:
        Connection(url).get_transport_cls()
    except (KeyError, ValueError, ImportError) as error:
        raise ConfigError(
            f"CANTATA_BROKER_URL {shown(url)!r} is not the address of a Redis or of RabbitMQ: {error.args[0]}"
        ) from error


class App(Celery):
    """The Celery app of steps, and of nothing else; it sends a message in a third of the processor time, without results and routes.

    It lives in processes of users, and users' code in its workers. So it is never the current or the default app: by that, `shared_task`
    and `current_app` would publish users' tasks to our queues. It takes no task that others offer to all apps of a process, since its
    workers would execute it. The variables by which Celery configures all apps of a process (`CELERY_BROKER_URL`, ...) are the user's.
    """

    is_cantata = True
    backend_cls = "cantata.engine.dispatch.celery_app:LedgerBackend"

    own_broker = ""
    """The broker's address without its password, if it is not the Redis of the runs."""

    namespace = DEFAULT_NAMESPACE
    """The prefix of all names in the broker."""

    beside: Mapping[str, int] = MappingProxyType({})
    """Queues that a worker serves beside its own, and how many messages of each it executes at once."""

    held: frozenset[str] = frozenset()
    """Queues of a worker's own from which it receives nothing now: they are paused, or it is drained."""

    dead_letters: Redis
    """The client of a worker that stores messages which are not steps."""

    def __init__(self, main: str) -> None:
        super().__init__(main, set_as_current=False, loader="celery.loaders.app:AppLoader")

    def set_current(self) -> None:
        """Leave the current app of this thread as it is. Celery's worker calls this."""

    def set_default(self) -> None:
        """Leave the default app of the process as it is. Celery's worker and its Django support call this."""

    def _task_from_fun(self, *_: Any, **__: Any) -> None:  # type: ignore[override]  # nobody uses what it returns
        """Take no task that `@shared_task`, `@app.task` of another application, or Celery itself offers to all apps of the process."""

    def connection_for_read(self, url: str | None = None, **options: Any) -> Connection:
        """Return a connection for consuming."""
        return super().connection_for_read(url or self._broker_url, **options)

    def connection_for_write(self, url: str | None = None, **options: Any) -> Connection:
        """Return a connection for publishing."""
        return super().connection_for_write(url or self._broker_url, **options)

    def connection(self, hostname: str | None = None, **options: Any) -> Connection:  # type: ignore[override]  # all else is in options
        """Return a connection, for Flower."""
        return self.connection_for_write(hostname, **options)

    @property
    def _broker_url(self) -> str:
        return str(self.conf["broker_url"])  # the attribute of this name is CELERY_BROKER_URL, if that is set

    def broker_queue(self, queue: str) -> str:
        """Return the name of a queue of steps in the broker, where it must not collide with another application's."""
        return f"{self.namespace}.{queue}"

    def is_ours(self, broker_queue: str) -> bool:
        """Return whether a queue of the broker is one of steps."""
        return broker_queue.startswith(f"{self.namespace}.")

    def step_queue(self, broker_queue: str) -> str:
        """Return the name of a queue of steps outside the broker."""
        return broker_queue.removeprefix(f"{self.namespace}.")

    def send_task(  # type: ignore[override]  # all else is in options
        self, name: str, args: Any = None, kwargs: Any = None, *, producer: Any = None, **options: Any
    ) -> Any:
        """Send a message; one with options that our canvases do not have is sent by Celery's own method.

        If Celery fails to send a link or a join, the sweep sends it later: the step before it is done, and does not fail.
        """
        if any(value is not None for option, value in options.items() if option not in PLAIN_OPTIONS):
            return super().send_task(name, args, kwargs, producer=producer, **options)
        options = {option: value for option, value in options.items() if value is not None}
        options.setdefault(
            "headers", {"sent_at": clock.now()}
        )  # of a link or a join, which Celery sends long after it was written
        task_id, queue, headers, priority = (
            options.pop(option, None) for option in ("task_id", "queue", "headers", "priority")
        )
        task_id = task_id or uuid()
        if (parent := self.current_worker_task) is not None:
            options.setdefault("root_id", parent.request.root_id or parent.request.id)
            options.setdefault("parent_id", parent.request.id)
        options.setdefault("ignore_result", True)
        message = self.amqp.create_task_message(task_id, name, args, kwargs, **options)
        by_celery = producer is None and parent is not None
        try:
            with self.producer_or_acquire(producer) as producer:
                declare: list[str] | None = (
                    [] if producer.connection.transport.driver_type == "redis" else None
                )  # lists need none
                self.amqp.send_task_message(
                    producer, name, message, queue=queue, headers=headers, declare=declare, priority=priority
                )
        except Exception as error:
            if not (by_celery and isinstance(error, self._broker_errors())):
                raise
            log.warning(
                "dispatch_failed", task=name, error=str(unavailable(self, error)), note="the sweep sends it later"
            )
        return self.AsyncResult(task_id)

    def announce_runs(self, runs: Sequence[tuple[str, int]], queue: str = COORDINATOR) -> None:
        """Send the first steps of new runs, given with their priorities; if the broker is unavailable, the sweep sends them later."""
        try:
            send(
                self,
                [
                    MessageHead(self, run_id, priority).signature("run.start", queue, [START])
                    for run_id, priority in runs
                ],
            )
        except UnavailableError as error:
            log.warning(
                "dispatch_failed", run=runs[0][0], error=str(error), note="the sweep sends it when the broker is back"
            )

    def send_ready(self, ready: Iterable[tuple[str, Ready]], *, sent_at: float | None = None) -> None:
        """Send steps of any runs, without a canvas behind them; those that were in their queue before go first.

        `sent_at` is that of `send`.
        """
        by_run: dict[bool, dict[tuple[str, int], list[tuple[str, Spec]]]] = {
            True: defaultdict(list),
            False: defaultdict(list),
        }
        for run_id, step in ready:
            by_run[step.has_waited][run_id, step.priority].append((step.step_id, step.spec))
        for first, runs in by_run.items():
            if runs:
                canvases = [
                    each for run, steps in runs.items() for each in canvas.build(MessageHead(self, *run), steps)
                ]
                send(self, canvases, first=first, sent_at=sent_at)

    def _broker_errors(self) -> tuple[type[BaseException], ...]:
        connection = self.connection_for_write()
        return (OperationalError, *connection.connection_errors, *connection.channel_errors)


def send(app: App, canvases: Iterable[Canvas], *, first: bool = False, sent_at: float | None = None) -> None:
    """Send canvases to the broker. Raises UnavailableError; the sweep sends later what was not sent.

    Args:
        first: Put the messages at the head of their queues, among those of the same priority.
        sent_at: A time before the ledger marked their steps as sent; now if None. Thousands of steps take seconds from there to the
            broker, and their messages must not look younger than they are.
    """
    messages = [message for each in canvases for message in _messages(each)]
    if first:
        _send(app, messages[::-1], {FIRST: True})  # each is put before those that were sent before it
    else:
        _send(app, messages, {"sent_at": clock.now() if sent_at is None else sent_at})


def _send(app: App, messages: Iterable[_Sent], headers: Mapping[str, object]) -> None:
    messages = [(kind, args, {**options, "headers": headers}) for kind, args, options in messages]
    try:
        with app.producer_or_acquire() as producer:
            if len(messages) < 2 or not _send_at_once(app, messages, producer):
                for kind, args, options in messages:
                    app.send_task(kind, args, producer=producer, **options)
    except (OperationalError, RedisError) as error:
        raise unavailable(app, error) from error
    fault_points.at("canvas-sent")


def unavailable(app: App, failure: BaseException) -> UnavailableError:
    """Return the error for a broker that cannot be used."""
    own = app.own_broker
    if not own:
        return UnavailableError(f"the broker: {reason(failure)}")
    if app.conf.broker_transport:
        return UnavailableError(f"the broker: {reason(failure, own).replace('REDIS_URL', 'CANTATA_BROKER_URL')}")
    cause = " ".join(str(failure).split())
    return UnavailableError(f"the broker at {own} cannot be used ({cause}); start it or correct CANTATA_BROKER_URL")


def _send_at_once(app: App, messages: Iterable[_Sent], producer: Any) -> bool:
    """Send in one round trip, where the transport can; return False if the connection broke. Messages sent twice then do no harm."""
    if not hasattr(producer, "batch"):  # before kombu 5.7
        return False
    try:
        with producer.batch():
            for kind, args, options in messages:
                app.send_task(kind, args, producer=producer, **options)
    except exceptions.BatchPublishError:  # type: ignore[attr-defined]  # the stubs are older than batches
        return False
    return True


def _messages(sent: Canvas) -> Iterator[_Sent]:
    """Yield the messages that `apply_async` of a canvas sends, without the copies and ids that it makes of every signature."""
    members = sent.tasks if isinstance(sent, group | chord) else None
    shared: dict[str, Any] = {"group_id": uuid()} if members else {}
    if isinstance(sent, chord):
        shared["chord"] = sent.body
    for index, member in enumerate(members or (sent,)):
        more = {**shared, "group_index": index} if members else {}
        first: dict[str, Any] = member
        if isinstance(member, chain):
            first, *links, last = member.tasks
            more = {
                "chain": [{**last, "options": {**last["options"], **more}}, *reversed(links)]
            }  # the member is its last link
        yield first["task"], first["args"], {**first["options"], **more}


class Carried:
    """The steps that Celery itself sends when a task is done: the links of its chain, the join of its chord."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._links: list[list[str]] = [link["args"][1] for link in reversed(request.chain or [])]
        self.join = frozenset(request.chord["args"][1] if request.chord else ())
        self.steps = self.join.union(*self._links)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which another message carries the same."""
        return {"chain": self._request.chain, "chord": self._request.chord, "group_id": self._request.group}

    def keep_only(self, ready: Collection[str], done: Collection[str]) -> frozenset[str]:
        """Let Celery send the next link that is ready, past those already done here; return the ready steps that it will not send."""
        chain_links = self._request.chain or []
        while chain_links and set(chain_links[-1]["args"][1]) <= set(done):
            chain_links.pop()
        following = frozenset(chain_links[-1]["args"][1]) if chain_links else frozenset()
        if not following or not following <= set(ready):
            self._request.chain = None
            following = frozenset()
        return frozenset(ready) - following - self.join

    def send(self, app: App, answer: str | None) -> None:
        """Send the next link, or the join, of a task that raises, as Celery does for one that succeeds and returns `answer`."""
        chain_links, self._request.chain = self._request.chain, None
        if chain_links:
            app.signature(chain_links[-1]).apply_async(chain=chain_links[:-1])
        app.backend.on_chord_part_return(self._request, states.SUCCESS, answer)


def __getattr__(name: str) -> App:
    """Return `app`, for Celery's own commands: `celery -A cantata.engine.dispatch.celery_app`."""
    if name != "app":
        raise AttributeError(name)
    return make_app(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), os.environ.get("CANTATA_BROKER_URL"))
