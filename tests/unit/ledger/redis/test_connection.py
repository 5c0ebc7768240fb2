"""One address, in the words of redis-py and of Celery."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError
from cantata.ledger.redis.address import celery_url, redis_url, without_password
from cantata.ledger.redis.connection import connect


@pytest.mark.parametrize(
    ("given", "for_redis", "for_celery"),
    [
        ("redis://host:6379/2", "redis://host:6379/2", "redis://host:6379/2"),
        ("redis+socket:///run/s?virtual_host=3", "unix:///run/s?db=3", "redis+socket:///run/s?virtual_host=3"),
        ("unix:///run/s?db=3", "unix:///run/s?db=3", "redis+socket:///run/s?virtual_host=3"),
        ("rediss://h/0", "rediss://h/0", "rediss://h/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        (
            "rediss://h/0?ssl_ca_certs=c",
            "rediss://h/0?ssl_ca_certs=c",
            "rediss://h/0?ssl_ca_certs=c&ssl_cert_reqs=required",
        ),
    ],
)
def test_an_address_is_said_as_each_library_wants_it(given: str, for_redis: str, for_celery: str) -> None:
    assert redis_url(given) == for_redis
    assert celery_url(given) == for_celery


def test_a_password_is_never_shown() -> None:
    assert without_password("redis://user:secret@host/0") == "redis://user:***@host/0"
    assert without_password("redis://host/0") == "redis://host/0"


def test_what_is_no_address_is_told_in_a_sentence_without_the_password() -> None:
    with pytest.raises(ConfigError, match="is not the address of a Redis") as caught:
        connect("http://u:secret@host")

    assert "secret" not in str(caught.value)
