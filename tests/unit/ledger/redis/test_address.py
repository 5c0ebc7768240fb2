"""What a REDIS_URL says, in each of its forms, and how it is shown."""

from __future__ import annotations

import pytest

from cantata.engine.dispatch.celery_app import make_app
from cantata.errors import ConfigError
from cantata.ledger.redis.address import celery_url, parse, shown, without_password


def test_one_server_is_left_to_redis_py() -> None:
    assert (
        parse("redis://host/2").kind
        == parse("unix:///run/s?db=1").kind
        == parse("redis+socket:///run/s?virtual_host=1").kind
        == "server"
    )
    assert parse("rediss://host").tls


def test_sentinels_are_several_places_and_the_name_of_a_master() -> None:
    found = parse("redis+sentinel://user:pass%2Fword@one:1,two,[::1]:3/mymaster/4?sentinel_password=other")

    assert (found.kind, found.tls, found.master) == ("sentinel", False, "mymaster")
    assert found.places == (("one", 1), ("two", 26379), ("::1", 3))
    assert found.options == {"username": "user", "password": "pass/word", "db": 4}
    assert found.sentinel_options == {"password": "other"}


def test_with_tls_the_sentinels_are_asked_with_the_same_certificates() -> None:
    found = parse("rediss+sentinel://one/main?ssl_ca_certs=/ca.pem&sentinel_username=bob")

    assert found.tls
    assert found.options == {"db": 0, "ssl_ca_certs": "/ca.pem"}
    assert found.sentinel_options == {"username": "bob", "ssl_ca_certs": "/ca.pem"}


def test_a_cluster_is_several_places() -> None:
    found = parse("rediss+cluster://:secret@one:7000,two?ssl_check_hostname=false")

    assert (found.kind, found.tls) == ("cluster", True)
    assert found.places == (("one", 7000), ("two", 6379))
    assert found.options == {"password": "secret", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://u:secret@host", "must specify one of"),
        ("redis+sentinel://one:1", "name the master behind the Sentinels"),
        ("redis+sentinel://one:1/main/x", "a database is a number, not 'x'"),
        ("redis+sentinel:///main", "it names no host"),
        ("redis+cluster://one/3", "a cluster has only database 0"),
        ("redis+cluster://one:port", "Port could not be cast"),
        ("rediss://host/0?ssl_ca_cert=/typo.pem", "unexpected keyword argument 'ssl_ca_cert'"),
        ("redis://host/0?ssl_ca_certs=/no-tls.pem", "unexpected keyword argument 'ssl_ca_certs'"),
        ("rediss://host/0?ssl_cert_reqs=sometimes", "Invalid SSL Certificate Requirements Flag: sometimes"),
    ],
)
def test_what_is_no_address_is_told_without_the_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)

    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("redis://user:secret@host/0?ssl_password=secret&db=1", "redis://user:***@host/0?ssl_password=***&db=1"),
        (
            "redis+sentinel://:p@ss@one:1,two:2/main?sentinel_password=secret",
            "redis+sentinel://:***@one:1,two:2/main?sentinel_password=***",
        ),
        ("redis://user@host/0", "redis://user@host/0"),
    ],
)
def test_a_password_is_shown_nowhere(url: str, as_shown: str) -> None:
    assert without_password(url) == as_shown
    assert shown(url) == as_shown.partition("?")[0]


def test_celery_is_told_of_sentinels_beside_its_url() -> None:
    url = "redis+sentinel://user:p%2Fw@one:1,two:2/main/3"

    assert celery_url(url) == "sentinel://user:p%2Fw@one:1/3"
    assert make_app(url).conf.broker_transport_options["address"] == parse(url)
    assert make_app("redis://host", url).conf.broker_transport == "cantata.engine.dispatch.transport:SentinelTransport"


def test_a_cluster_needs_a_broker_beside_it() -> None:
    with pytest.raises(ConfigError, match="set CANTATA_BROKER_URL to a single Redis, to Sentinels or to RabbitMQ"):
        make_app("redis+cluster://one:1")

    assert make_app("redis+cluster://one:1", "amqp://broker").conf.broker_url == "amqp://broker"


@pytest.mark.parametrize("url", ["redis://:CHANGE-ME@redis:6379/0", "redis+sentinel://cantata:PASSWORD@one:26379/main"])
def test_the_password_of_an_example_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is that of the example; set your own"):
        parse(url)


def test_a_cluster_needs_the_redis_py_that_it_is_run_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis.__version__", "7.4.1")

    with pytest.raises(ConfigError, match=r"a Redis Cluster needs redis-py 8\.1 or newer; 7\.4\.1 is installed"):
        parse("redis+cluster://one:7000")

    assert parse("redis://one:7000").kind == "server"
