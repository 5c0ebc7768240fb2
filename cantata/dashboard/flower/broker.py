"""Tells Flower where its page of the broker finds the queues. Our transports have names of their own, which Flower does not know."""

from __future__ import annotations

from typing import Any

from celery import Celery

from cantata.state.redis.address import Address, celery_url, parse, without_password


def show_broker(flower: Any, url: str) -> None:
    """Have a Flower count what waits in the Redis at this URL. RabbitMQ it knows by itself."""
    if flower.transport == "redis":
        flower.broker_uri_with_password = celery_url(url)
        flower.broker_uri = without_password(flower.broker_uri_with_password)
        _tell(flower.capp, parse(url))


def _tell(app: Celery, address: Address) -> None:
    """Give Celery's settings what Flower looks for there; our transports need none of it."""
    if address.kind == "sentinel":
        app.conf.broker_transport_options |= {"master_name": address.master, "sentinel_kwargs": dict(address.sentinel_options)}
    if address.tls:
        app.conf.broker_use_ssl = {name: value for name, value in address.options.items() if name.startswith("ssl_")} or True
