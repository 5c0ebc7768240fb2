"""Contents of the broker's queues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, cast

from kombu import Connection
from kombu.exceptions import OperationalError

from cantata.engine.dispatch.celery_app import App, unavailable
from cantata.engine.fleet.load import Waiting
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import RedisRefusal

UNKNOWN_TIME = -inf  # older than any other
CONNECT_TIMEOUT_S = 3  # to reach the broker, for callers that only count what waits there


def heads_sent_at(app: App, queues: Iterable[tuple[str, int]]) -> dict[tuple[str, int], float | None]:
    """Return when the next message of each queue and priority was sent; None if there is none.

    It is UNKNOWN_TIME for a message without a time: a foreign one, or one put at the head of its queue. Raises UnavailableError.
    """
    wanted = {(queue, priority): app.broker_queue(queue) for queue, priority in queues}
    with app.connection_for_read() as connection:
        lost: Any = (OperationalError, *connection.connection_errors)
        try:
            if connection.transport.driver_type == "redis":
                return _heads_in_redis(connection.default_channel, wanted)
            heads = {name: _head(connection, name) for name in set(wanted.values())}
            return {queue: heads[name] for queue, name in wanted.items()}
        except lost as error:
            raise unavailable(app, error) from error


def _heads_in_redis(channel: Any, wanted: Mapping[tuple[str, int], str]) -> dict[tuple[str, int], float | None]:
    heads = _ask(
        channel, [("LINDEX", channel._q_for_pri(name, priority), -1) for (_, priority), name in wanted.items()]
    )
    return {queue: None if head is None else _sent_at(head) for queue, head in zip(wanted, heads, strict=True)}


def _ask(channel: Any, commands: Iterable[tuple[str | int, ...]]) -> list[Any]:
    """Return the replies to commands, of which Redis may refuse some. Raises the error of a lost connection."""
    with channel.client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        replies: list[Any] = pipe.execute(raise_on_error=False)
    if lost := next(
        (reply for reply in replies if isinstance(reply, Exception) and not isinstance(reply, RedisRefusal)), None
    ):
        raise lost
    return replies


def _head(connection: Connection, queue: str) -> float | None:
    """Return when the first message of a queue was sent. The message is received and requeued in its place."""
    with connection.channel() as channel:
        try:
            raw = channel.basic_get(queue)  # type: ignore[attr-defined]  # of every channel
            if raw is None:
                return None
            channel.basic_reject(raw.delivery_tag, requeue=True)  # type: ignore[attr-defined]  # as above
            return _number((raw.headers or {}).get("sent_at"))
        except connection.channel_errors:  # there is no such queue yet
            return None


def waiting(app: App, queues: Iterable[str]) -> dict[str, Waiting]:
    """Return what waits in queues. Raises UnavailableError after a few seconds if the broker is unavailable."""
    with app.connection_for_read() as connection:
        lost: Any = (
            OperationalError,
            *connection.connection_errors,
            *connection.channel_errors,
        )  # RabbitMQ refuses a password with these
        try:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_TIMEOUT_S)
            if connection.transport.driver_type != "redis":
                return {queue: Waiting(_waiting(connection, app.broker_queue(queue))) for queue in queues}
            found = _waiting_in_redis(connection.default_channel, [app.broker_queue(queue) for queue in queues])
            return {app.step_queue(queue): each for queue, each in found.items()}
        except lost as error:
            raise unavailable(app, error) from error


def _waiting_in_redis(channel: Any, queues: Sequence[str]) -> dict[str, Waiting]:
    """Return what waits in queues in Redis, which are a list for each priority."""
    lists = [(queue, channel._q_for_pri(queue, priority)) for queue in queues for priority in channel.priority_steps]
    answers = _ask(channel, [command for _, name in lists for command in (("LLEN", name), ("LINDEX", name, -1))])
    counts, oldest = dict.fromkeys(queues, 0), dict[str, float]()
    for (queue, _), count, head in zip(lists, answers[::2], answers[1::2], strict=True):
        if isinstance(count, Exception):
            continue  # it is not a list, or access is denied: callers may name any queue
        counts[queue] += count
        if (age_s := _age_s(head)) is not None:
            oldest[queue] = max(age_s, oldest.get(queue, 0.0))
    return {queue: Waiting(count, oldest.get(queue)) for queue, count in counts.items()}


def _waiting(connection: Connection, queue: str) -> int:
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)  # type: ignore[attr-defined]  # of every AMQP channel
        except connection.channel_errors:  # there is no such queue yet
            return 0


def _age_s(raw: bytes | None) -> float | None:
    if raw is None or (sent_at := _sent_at(raw)) == UNKNOWN_TIME:
        return None
    return max(0.0, clock.now() - sent_at)


def _sent_at(raw: object) -> float:
    """Return when a message in a Redis list was sent; UNKNOWN_TIME for an item that is no message."""
    try:
        return _number(json.loads(cast(bytes, raw))["headers"]["sent_at"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return UNKNOWN_TIME


def _number(sent_at: object) -> float:
    return float(sent_at) if isinstance(sent_at, int | float) else UNKNOWN_TIME
