"""Clients of processes that serve until they are stopped: these wait for a Redis that is away, and log when it is back."""

from __future__ import annotations

from cantata.client.client import Client
from cantata.ledger.redis import availability
from cantata.operation.extras import check_extras
from cantata.settings import settings


def wait_for_client(*, config: str | None = None, name: str) -> Client:
    """Return a client as soon as Redis answers. `name` says in log lines which process waits.

    Raises ConfigError and UnavailableError as `Client` does, but for a Redis that does not run or loads its data: that is waited for.
    """
    if settings().app:
        check_extras("celery", needed_by="CANTATA_APP")
        from cantata.client import application  # noqa: PLC0415  # loads Celery

        application.configured()  # the user's code may start processes: not while SIGTERM is held back

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
