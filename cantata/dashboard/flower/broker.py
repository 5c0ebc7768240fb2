"""Broker settings for Flower's page of queues: our transports have names that Flower does not know."""

from __future__ import annotations

from typing import Any

from celery import Celery

from cantata.state.redis.address import Address, celery_url, parse, without_password


def show_broker(flower: Any, url: str) -> None:
    """Set the Redis whose queues a Flower counts. It supports RabbitMQ by itself."""
    if flower.transport == "redis":
        flower.broker_uri_with_password = celery_url(url)
        flower.broker_uri = without_password(flower.broker_uri_with_password)
        _configure(flower.capp, parse(url))


def _configure(app: Celery, address: Address) -> None:
    """Set what Flower reads from Celery's settings; our transports need none of it."""
    if address.kind == "sentinel":
        app.conf.broker_transport_options |= {"master_name": address.master, "sentinel_kwargs": dict(address.sentinel_options)}
    if address.tls:
        app.conf.broker_use_ssl = {name: value for name, value in address.options.items() if name.startswith("ssl_")} or True
