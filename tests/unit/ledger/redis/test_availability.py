"""Errors for which a process waits at its start, and those that end it."""

from __future__ import annotations

import ssl

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    NoPermissionError,
    RedisClusterException,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from cantata.errors import UnavailableError
from cantata.ledger.redis.availability import is_away
from cantata.ledger.redis.redis_errors import reason

CERTIFICATE = ssl.SSLCertVerificationError(1, "self-signed certificate")
CERTIFICATE.verify_code, CERTIFICATE.verify_message = 18, "self-signed certificate"


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


AWAY = [
    RedisConnectionError("Error 111 connecting to h:1. Connection refused."),
    RedisConnectionError("Error -2 connecting to h:1. Name or service not known."),
    RedisTimeoutError("Timeout connecting to server"),
    BusyLoadingError("Redis is loading the dataset in memory"),
    MasterNotFoundError("No master found for 'main'"),
    ClusterDownError("CLUSTERDOWN The cluster is down"),
    RedisClusterException("Redis Cluster cannot be connected"),
    caused(RedisConnectionError("Error 2 connecting to unix socket: /s. No such file."), FileNotFoundError(2, "/s")),
    caused(RedisConnectionError("closed"), ssl.SSLEOFError(8, "EOF occurred")),
]
REFUSALS = [
    AuthenticationError("invalid username-password pair"),
    NoPermissionError("User eve has no permissions to run the 'info' command"),
    InvalidResponse("Protocol Error: b'HTTP/1.1 400'"),
    ResponseError("DB index is out of range"),
    caused(RedisConnectionError("Error 1 connecting"), CERTIFICATE),
    caused(
        RedisConnectionError("Error 13 connecting to unix socket: /s. Permission denied."), PermissionError(13, "/s")
    ),
]


@pytest.mark.parametrize("error", AWAY, ids=str)
def test_a_redis_that_may_come_is_waited_for(error: Exception) -> None:
    assert is_away(error)
    assert is_away(caused(UnavailableError(reason(error, "redis://h:1/0")), error))


@pytest.mark.parametrize("error", REFUSALS, ids=str)
def test_a_refusal_is_not(error: Exception) -> None:
    assert not is_away(error)
    assert not is_away(caused(UnavailableError(reason(error, "redis://h:1/0")), error))


def test_neither_is_a_redis_that_is_unfit_nor_a_missing_file_of_ours() -> None:
    missing = caused(RedisConnectionError("Error 2 connecting"), FileNotFoundError(2, "ca.pem"))

    assert not is_away(UnavailableError("Redis is version 6.2; 7.0 or newer is needed"))
    assert not is_away(caused(UnavailableError(reason(missing, "rediss://h:1/0")), missing))
