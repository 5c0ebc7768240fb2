"""Connections for kombu, which reconnects after a lost connection and fails on any other error."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from cantata.ledger.redis.redis_errors import is_transient


class _TransientAsLost:
    """A connection that counts as lost on transient errors, such as a full disk, a full memory or a failover.

    A Celery consumer reconnects when its connection is lost, and ends its whole process on any other error.
    """

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]  # of a connection
        except ResponseError as error:
            if is_transient(error):
                raise RedisConnectionError(str(error)) from error
            raise


def reconnecting(connection: type[Any]) -> type[Any]:
    """Return a subclass of a connection class that counts as lost on transient errors."""
    return type(f"Reconnecting{connection.__name__}", (_TransientAsLost, connection), {})
