"""Clients of processes that serve until they are stopped: these wait for a Redis that is away, and log when it is back."""

from __future__ import annotations

from cantata.client.client import Client
from cantata.ledger.redis import availability


def wait_for_client(*, config: str | None = None, name: str) -> Client:
    """Return a client as soon as Redis answers. `name` says in log lines which process waits.

    Raises ConfigError and UnavailableError as `Client` does, but for a Redis that does not run or loads its data: that is waited for.
    """

    def connected() -> Client:
        client = Client(config=config)
        try:
            availability.check_loaded(client.redis, client.redis_url)
        except BaseException:
            client.close()
            raise
        return client

    client = availability.when_available(connected, name=name)
    availability.watch(client.redis, client.redis_url, name=name)
    return client
