"""Connections for kombu, which lives with lost ones and with nothing else."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from cantata.state.redis.redis_errors import is_transient


class _TransientAsLost:
    """Counts as lost when it is refused something for a while: the disk or the memory of Redis is full, another is to be the master.

    A consumer of Celery's comes again when its connection is lost, and ends its whole process for any other error.
    """

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]  # of a connection
        except ResponseError as error:
            if is_transient(error):
                raise RedisConnectionError(str(error)) from error
            raise


def reconnecting(connection: type[Any]) -> type[Any]:
    """Connections like these, which count as lost when they are refused something for a while."""
    return type(f"Reconnecting{connection.__name__}", (_TransientAsLost, connection), {})
