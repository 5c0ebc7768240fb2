"""Where Flower's page of the broker finds the queues, for each form of an address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from flower.utils.broker import Broker

from cantata.engine.dispatch.celery_app import make_app
from cantata.surfaces.flower.serve import show_broker


def shown(url: str) -> tuple[Any, str]:
    """The broker as Flower's page makes it (it connects to nothing yet), and the address that the page shows."""
    app = make_app("redis://localhost", url)
    with app.connection() as connection:
        flower: Any = SimpleNamespace(capp=app, transport=connection.transport.driver_type)
    show_broker(flower, url)
    conf = app.conf
    broker = Broker(
        flower.broker_uri_with_password,
        broker_options=conf.broker_transport_options,
        broker_use_ssl=conf.broker_use_ssl,
    )
    return broker.redis.connection_pool, flower.broker_uri


@pytest.mark.parametrize(
    ("url", "wanted", "address"),
    [
        (
            "redis://:secret@here:1234/2",
            {"host": "here", "port": 1234, "db": 2, "password": "secret"},
            "redis://:***@here:1234/2",
        ),
        (
            "unix:///run/valkey.sock?db=0",
            {"path": "/run/valkey.sock"},
            "redis+socket:///run/valkey.sock?virtual_host=0",
        ),
        (
            "rediss://here/0?ssl_ca_certs=/etc/ca.pem",
            {"host": "here", "ssl_ca_certs": "/etc/ca.pem"},
            "rediss://here/0?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=required",
        ),
        (
            "redis+sentinel://ann:secret@one,two/theirs/3",
            {"service_name": "theirs", "username": "ann", "password": "secret"},
            "sentinel://ann:***@one:26379/3",
        ),
    ],
)
def test_flower_asks_the_redis_that_carries_the_messages(url: str, wanted: dict[str, object], address: str) -> None:
    pool, found = shown(url)

    known = {**pool.connection_kwargs, "service_name": getattr(pool, "service_name", None)}
    assert {name: known.get(name) for name in wanted} == wanted
    assert found == address


def test_rabbitmq_is_left_to_flower() -> None:
    flower: Any = SimpleNamespace(transport="amqp")

    show_broker(flower, "amqp://here")

    assert vars(flower) == {"transport": "amqp"}
