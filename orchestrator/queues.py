"""What waits in the broker's queues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from kombu import Connection
from kombu.exceptions import OperationalError

from orchestrator.celeryapp import App, unavailable
from orchestrator.state import clock
from orchestrator.state.connection import RedisRefusal
from orchestrator.state.load import Waiting

WAITING_S = 3  # to reach the broker, for those who only ask what waits there


def oldest_waiting_s(app: App, queues: Iterable[tuple[str, int]]) -> dict[tuple[str, int], float | None]:
    """For each queue and priority, how long the message to be consumed next has waited; None if there is none.

    Only a Redis broker shows its messages; of another it is only known whether there are any, and then they count as older than all.
    """
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return {(queue, priority): inf if _is_waiting(connection, app.broker_queue(queue)) else None for queue, priority in queues}
        channel: Any = connection.default_channel
        return {
            (queue, priority): _age_s(channel.client.lindex(channel._q_for_pri(app.broker_queue(queue), priority), -1))
            for queue, priority in queues
        }


def waiting(app: App, queues: Iterable[str]) -> dict[str, Waiting]:
    """What waits in queues. Raises UnavailableError soon if the broker is away."""
    with app.connection_for_read() as connection:
        lost: Any = (OperationalError, *connection.connection_errors, *connection.channel_errors)  # RabbitMQ refuses a password with these
        try:
            connection.ensure_connection(max_retries=1, timeout=WAITING_S)
            if connection.transport.driver_type != "redis":
                return {queue: Waiting(_waiting(connection, app.broker_queue(queue))) for queue in queues}
            found = _waiting_in_redis(connection.default_channel, [app.broker_queue(queue) for queue in queues])
            return {app.step_queue(queue): each for queue, each in found.items()}
        except lost as error:
            raise unavailable(app, error) from error


def _waiting_in_redis(channel: Any, queues: Sequence[str]) -> dict[str, Waiting]:
    """What waits in the lists of queues, one for each priority."""
    lists = [(queue, channel._q_for_pri(queue, priority)) for queue in queues for priority in channel.priority_steps]
    with channel.client.pipeline(transaction=False) as pipe:
        for _, name in lists:
            pipe.llen(name)
            pipe.lindex(name, -1)
        answers = pipe.execute(raise_on_error=False)
    if lost := next((each for each in answers if isinstance(each, Exception) and not isinstance(each, RedisRefusal)), None):
        raise lost
    counts, oldest = dict.fromkeys(queues, 0), dict[str, float]()
    for (queue, _), count, head in zip(lists, answers[::2], answers[1::2], strict=True):
        if isinstance(count, Exception):
            continue  # it is no list, or not ours to see: anybody may ask for any name
        counts[queue] += count
        if (age_s := _age_s(head)) is not None:
            oldest[queue] = max(age_s, oldest.get(queue, 0.0))
    return {queue: Waiting(count, oldest.get(queue)) for queue, count in counts.items()}


def _is_waiting(connection: Connection, queue: str) -> bool:
    return bool(_waiting(connection, queue))


def _waiting(connection: Connection, queue: str) -> int:
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)  # type: ignore[attr-defined]  # of every AMQP channel
        except connection.channel_errors:  # there is no such queue yet
            return 0


def _age_s(raw: bytes | None) -> float | None:
    if raw is None:
        return None
    sent_at = json.loads(raw).get("headers", {}).get("sent_at")
    return clock.now() - sent_at if sent_at else 0.0
