"""Errors as rejections, in the gateway and in Flower."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError, UnavailableError, UnknownRunError
from cantata.ledger.redis.connection import RedisFailure
from cantata.surfaces.flower.page_handlers import _rejection
from cantata.surfaces.http.rejections import rejection_of


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownRunError("no run"), 404, "unknown_run"),
        (ConfigError("not so", code="odd"), 422, "odd"),
        (ConfigError("too many signals", code="quota_exceeded"), 429, "quota_exceeded"),
        (UnavailableError("Redis is away"), 503, "unavailable"),
    ],
)
def test_errors_with_a_meaning_are_told(error: Exception, status: int, code: str) -> None:
    rejected = rejection_of(error)

    assert rejected is not None
    assert (rejected.status, rejected.code, str(rejected)) == (status, code, str(error))


def test_what_nobody_foresaw_is_not_shown() -> None:
    assert rejection_of(ValueError("secret")) is None
    assert "secret" not in _rejection(ValueError("secret")).body.model_dump_json()


def test_an_error_of_redis_is_a_sentence_that_says_what_to_do() -> None:
    rejected = rejection_of(RedisFailure("OOM command not allowed when used memory > 'maxmemory'"))

    assert rejected is not None
    assert (rejected.status, rejected.code) == (503, "unavailable")
    assert "raise its maxmemory" in str(rejected)
