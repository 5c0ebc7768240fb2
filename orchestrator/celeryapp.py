"""The Celery app: its settings, how a canvas becomes messages, and chords whose join the ledger decides."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Any

from celery import Celery, chain, chord, group
from celery.backends.redis import RedisBackend
from celery.canvas import Signature
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid

from orchestrator import faultpoints
from orchestrator.errors import UnavailableError
from orchestrator.planning.canvas import Canvas, Fan, Message, Row
from orchestrator.state.connection import celery_url

VISIBILITY_S = 12 * 3600  # long: the ledger finds lost work, a redelivery only comes as well
LIMIT_SPARE_S = 30.0  # Celery's own hard limit is a backstop behind the worker's time-out


TRANSPORTS = {
    "redis": "orchestrator.transport:Transport",
    "rediss": "orchestrator.transport:Transport",
    "socket": "orchestrator.transport:SocketTransport",
}


class LedgerBackend(RedisBackend):
    """Stores no results; sends a chord's join when a part says that the ledger made it ready."""

    def apply_chord(self, header_result_args: Any, body: Any, **options: Any) -> None:
        """Prepare nothing: the ledger counts."""

    def on_chord_part_return(self, request: Any, state: Any, result: Any, propagate: Any = None, **options: Any) -> None:
        """Send the join if this part's commit made it ready."""
        if state == "SUCCESS" and result == "joined" and request.chord:
            faultpoints.at("chord-joined")
            self.app.signature(request.chord).apply_async()  # type: ignore[attr-defined]  # every backend has its app


def make_app(redis_url: str, broker_url: str | None = None) -> Celery:
    """A Celery app for runs kept at `redis_url` and messages carried by `broker_url` (the same Redis if None)."""
    app = Celery("cantata", set_as_current=False)
    backend_url = celery_url(redis_url).removeprefix("redis+")
    broker = celery_url(broker_url or redis_url).removeprefix("redis+")
    scheme = broker.partition(":")[0]
    if scheme in TRANSPORTS:
        app.conf.broker_transport = TRANSPORTS[scheme]
    app.conf.update(
        broker_url=broker,
        result_backend=f"orchestrator.celeryapp:LedgerBackend+{backend_url}",
        broker_transport_options={"visibility_timeout": VISIBILITY_S, "max_connections": 1000},
        broker_connection_retry_on_startup=True,
        broker_pool_limit=20,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_create_missing_queues=True,
        task_default_queue="coordinator",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_lost_wait=0.0,
        worker_send_task_events=os.environ.get("CANTATA_TASK_EVENTS", "1") == "1",
        worker_cancel_long_running_tasks_on_connection_loss=False,
        event_queue_expires=60,
        enable_utc=True,
    )
    return app


def signature(app: Celery, run_id: str, message: Message) -> Signature:
    """A message as a Celery signature: ids only."""
    return app.signature(message.kind, args=(run_id, list(message.steps)), immutable=True, options=_options(run_id, message))


def _options(run_id: str, message: Message) -> dict[str, Any]:
    shown = f"{run_id}:{','.join(message.steps[:8])}{'…' if len(message.steps) > 8 else ''}"
    options: dict[str, Any] = {"queue": message.queue, "argsrepr": shown, "kwargsrepr": "", "headers": {"sent_at": time.time()}}
    if message.limit_s is not None:
        options["time_limit"] = message.limit_s + LIMIT_SPARE_S
    return options


def to_celery(app: Celery, run_id: str, canvas: Canvas) -> Signature:
    """A canvas as Celery's own: chain, group, chord, or a single task."""
    if isinstance(canvas, Row):
        links = [signature(app, run_id, message) for message in canvas.messages]
        return chain(*links, app=app) if len(links) > 1 else links[0]
    members = [signature(app, run_id, message) for message in canvas.members]
    if canvas.join is not None:
        return chord(group(*members, app=app), signature(app, run_id, canvas.join), app=app)
    return group(*members, app=app) if len(members) > 1 else members[0]


def send(app: Celery, run_id: str, canvases: Iterable[Canvas]) -> None:
    """Send canvases to the broker. Raises UnavailableError; what was not sent the sweep sends later."""
    try:
        with app.producer_or_acquire() as producer:
            for canvas in canvases:
                if isinstance(canvas, Fan) and canvas.join is None:
                    _send_group(app, producer, run_id, canvas.members)
                else:
                    to_celery(app, run_id, canvas).apply_async(producer=producer)
    except OperationalError as error:
        raise UnavailableError(f"the broker cannot be reached ({error}); start it or mend CANTATA_BROKER_URL") from error
    faultpoints.at("canvas-sent")


def _send_group(app: Celery, producer: Any, run_id: str, members: Sequence[Message]) -> None:
    """What `group(...).apply_async()` puts on the wire, without its copies of every signature: messages that share a group id."""
    group_id = uuid() if len(members) > 1 else None
    for index, message in enumerate(members):
        options = _options(run_id, message)
        if group_id:
            options |= {"group_id": group_id, "group_index": index}
        app.send_task(message.kind, (run_id, list(message.steps)), producer=producer, **options)


class Carried:
    """The steps that Celery itself sends when a task is done: the links of its chain, the join of its chord."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._links: list[list[str]] = [link["args"][1] for link in reversed(request.chain or [])]
        self.join = frozenset(request.chord["args"][1] if request.chord else ())
        self.steps = self.join.union(*self._links)

    def keep_only(self, ready: Collection[str], done: Collection[str]) -> frozenset[str]:
        """Let Celery send the next link that is ready, past those already done here; answers the ready steps it will not send."""
        chain_links = self._request.chain or []
        while chain_links and set(chain_links[-1]["args"][1]) <= set(done):
            chain_links.pop()
        following = frozenset(chain_links[-1]["args"][1]) if chain_links else frozenset()
        if not following or not following <= set(ready):
            self._request.chain = None
            following = frozenset()
        return frozenset(ready) - following - self.join


def oldest_waiting_s(app: Celery, queues: Sequence[str]) -> dict[str, float | None]:
    """For each queue, how long the message to be consumed next has waited; None if the queue is empty.

    Only a Redis broker shows its messages; of another it is only known whether there are any, and then they count as older than all.
    """
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return {queue: inf if _is_waiting(connection, queue) else None for queue in queues}
        client = connection.default_channel.client  # type: ignore[attr-defined]  # the Redis transport has one
        return {queue: _age_s(client.lindex(queue, -1)) for queue in queues}


def _is_waiting(connection: Connection, queue: str) -> bool:
    with connection.channel() as channel:
        try:
            return bool(channel.queue_declare(queue, passive=True).message_count)  # type: ignore[attr-defined]  # of every AMQP channel
        except connection.channel_errors:  # there is no such queue yet
            return False


def _age_s(raw: bytes | None) -> float | None:
    if raw is None:
        return None
    sent_at = json.loads(raw).get("headers", {}).get("sent_at")
    return time.time() - sent_at if sent_at else 0.0


app = make_app(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), os.environ.get("CANTATA_BROKER_URL"))
