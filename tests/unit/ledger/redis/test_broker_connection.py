"""Connections that count as lost when Redis refuses something for a while."""

from __future__ import annotations

import socket

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from cantata.ledger.redis.broker_connection import reconnecting
from cantata.ledger.redis.connection import connect
from cantata.ledger.redis.redis_errors import reason


class Refused:
    """A connection on which all is refused."""

    def __init__(self, error: ResponseError) -> None:
        self.error = error

    def read_response(self) -> object:
        raise self.error


FULL_DISK = ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
FOR_A_WHILE = [
    FULL_DISK,
    OutOfMemoryError("command not allowed"),
    ReadOnlyError("no writes"),
    ResponseError("NOREPLICAS Not enough good"),
]


@pytest.mark.parametrize("error", FOR_A_WHILE, ids=str)
def test_what_is_refused_for_a_while_counts_as_a_lost_connection_and_keeps_its_reason(error: ResponseError) -> None:
    with pytest.raises(RedisConnectionError) as found:
        reconnecting(Refused)(error).read_response()

    assert reason(found.value) == reason(error)


@pytest.mark.parametrize(
    "error", [ResponseError("WRONGTYPE"), NoPermissionError("no permissions to run the 'keys' command")], ids=str
)
def test_what_is_refused_for_good_stays_what_it_is(error: ResponseError) -> None:
    with pytest.raises(type(error)) as found:
        reconnecting(Refused)(error).read_response()

    assert found.value is error


def test_a_connection_over_a_socket_can_break() -> None:
    """redis-py 8.1 fails where it tells of the broken connection, since this kind has no port of its own."""
    ours, theirs = socket.socketpair()
    with theirs, connect("unix:///nowhere") as redis:
        connection = redis.connection_pool.make_connection()
        connection._sock = ours

        connection.disconnect(error=RedisConnectionError("broken"), failure_count=1, health_check_failed=True)

        assert connection._sock is None
