"""Messages of the user's application, sent by the producers that keep their connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, signals
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from redis import Redis

from cantata.engine.dispatch.transport import KeptClientChannel, Producers
from tests.integration.redis.servers import Server, running

VOLATILE = {"expires", "delivery_tag"}  # the time of sending, and what kombu draws for each message


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis of its own: it is killed."""
    server = Server(tmp_path)
    with running(server):
        yield server


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    """An application with routes, priorities, a topic exchange, a prefix and compression."""
    topic = Exchange("shop", type="topic")
    app = Celery("shop", broker=f"redis://{server.place}/3", set_as_current=False)
    app.conf.update(
        broker_transport_options={"global_keyprefix": "shop:", "priority_steps": [0, 5, 9]},
        task_queues=[
            Queue("celery"),
            Queue("payments"),
            Queue("short", expires=60.0),
            Queue("all", topic, routing_key="card.#"),
        ],
        task_routes={
            "tests.routed": {"queue": "payments", "priority": 5},
            "tests.topic": {"queue": "all", "routing_key": "card.new"},
            "tests.short": {"queue": "short"},
        },
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0.0},
    )
    with app.connection_for_write() as connection:
        for queue in app.conf.task_queues:
            queue(connection).declare()
    yield app
    app.close()


class Stamped(Task):  # type: ignore[type-arg]  # its function is that of the decorated task
    """A task that sends itself in its own way."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]  # all else is in options
        """Add a header."""
        return super().apply_async(
            args, kwargs, **{**options, "headers": {**options.get("headers", {}), "shop": "yes"}}
        )


def _work(**_: object) -> None:
    raise AssertionError("it is only sent")


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("plain", {}, "celery"),
        ("routed", {}, "payments\x06\x165"),
        ("topic", {}, "all"),
        ("short", {}, "short"),
        ("yaml", {"serializer": "yaml", "compression": "gzip"}, "celery"),
        ("stamped", {"base": Stamped}, "celery"),
        ("limited", {"time_limit": 9}, "celery"),
    ],
)
def test_their_message_is_the_one_that_the_application_itself_sends(
    server: Server, app: Celery, name: str, options: dict[str, Any], key: str
) -> None:
    register: Any = app.task(name=f"tests.{name}", **options)
    task = register(_work)
    producer = Producers(app).get()
    assert producer is not None
    assert isinstance(producer.channel, KeptClientChannel)
    published: list[dict[str, Any]] = []
    connect: Any = signals.before_task_publish.connect
    connect(lambda **given: published.append(given["headers"]), weak=False, dispatch_uid="test")
    redis, sent = Redis("127.0.0.1", server.port, db=3), []
    try:
        for each in (None, producer):
            more = {"producer": each, "headers": {"cantata_run": "r1"}, "task_id": "cantata-r1-1-s", "expires": 30}
            task.apply_async(kwargs={"text": "ä", "amount": 3}, **more)
            (item,) = redis.lrange(f"shop:{key}", 0, -1)
            redis.delete(f"shop:{key}")
            sent.append(_without_volatile(json.loads(item)))
    finally:
        signals.before_task_publish.disconnect(dispatch_uid="test")

    assert sent[0] == sent[1]
    assert sent[0]["headers"]["cantata_run"] == "r1"
    assert sent[0]["headers"].get("shop") == ("yes" if name == "stamped" else None)
    assert len(published) == 2


@pytest.mark.parametrize("retries", [None, 0, 1])
def test_messages_are_sent_again_when_their_broker_is_back(server: Server, app: Celery, retries: int | None) -> None:
    app.conf.task_publish_retry = retries is not None
    app.conf.task_publish_retry_policy = {"max_retries": retries, "interval_start": 0.0}
    producers, task = Producers(app), app.task(name="tests.plain")(_work)
    task.apply_async(producer=producers.get())

    server.kill()
    for _ in range(3):
        with pytest.raises(OperationalError):
            task.apply_async(producer=producers.get())
    server.start()
    server.wait()
    for _ in range(3):
        task.apply_async(producer=producers.get())

    assert Redis("127.0.0.1", server.port, db=3).llen("shop:celery") >= 3


@pytest.mark.parametrize("url", ["memory://", "amqp://127.0.0.1:1//", "sentinel://127.0.0.1:1/0"])
def test_another_broker_is_left_to_the_application(url: str) -> None:
    assert Producers(Celery("shop", broker=url, set_as_current=False)).get() is None


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(each) for key, each in value.items() if key not in VOLATILE}
    return value
