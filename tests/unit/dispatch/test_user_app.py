"""The user's own Celery application: found, and asked for its broker and its Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from cantata.dispatch import user_app
from cantata.dispatch.celery_app import make_app
from cantata.errors import ConfigError

REDIS, RABBIT = "redis://one:1/0", "amqp://guest@two:2//"


def shop(broker: Any, backend: str | None = None, **conf: object) -> Celery:
    app = Celery("shop", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("broker", "backend", "found"),
    [
        (REDIS, "redis://other:1/1", REDIS),
        (RABBIT, "redis://other:1/1", "redis://other:1/1"),
        (RABBIT, "rpc://", None),
        (RABBIT, None, None),
        (["redis://one:1/0", "redis://two:1/0"], None, None),
        ("sentinel://one:1;sentinel://two:1", REDIS, REDIS),
    ],
)
def test_its_redis_is_its_broker_else_its_results(broker: object, backend: str | None, found: str | None) -> None:
    assert user_app.redis_url_of(shop(broker, backend)) == found


@pytest.mark.parametrize(
    "app", [shop("sentinel://one:1"), shop([REDIS, REDIS]), shop("rediss://one:1", broker_use_ssl={"ssl_cert_reqs": None})]
)
def test_a_broker_with_more_settings_than_its_address_must_be_named(app: Celery) -> None:
    with pytest.raises(ConfigError, match="CANTATA_BROKER_URL"):
        user_app.broker_url_of(app)


def test_our_app_shares_its_broker_and_events_but_no_queue_and_no_remote_control() -> None:
    theirs = shop(RABBIT, event_exchange="theirs", broker_heartbeat=7)

    ours = make_app(REDIS, beside=theirs).conf

    assert (ours.broker_url, ours.event_exchange, ours.broker_heartbeat) == (RABBIT, "theirs", 7)
    assert (ours.control_exchange, ours.task_default_queue) == ("cantata:control", "cantata.coordinator")


def test_our_own_broker_has_our_own_events() -> None:
    assert make_app(REDIS, "redis://three:3", beside=shop(RABBIT)).conf.event_exchange == "cantata:events"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "no_such_shop", "ModuleNotFoundError: No module named 'no_such_shop'"),
        ("1 / 0\n", "broken_shop", "ZeroDivisionError: division by zero"),
        ("app = 1\n", "odd_shop:app", "'odd_shop:app' is of type int; expected a Celery application"),
    ],
)
def test_an_application_that_cannot_be_used_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, message: str
) -> None:
    if text:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(text)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(user_app.VARIABLE, name)

    with pytest.raises(ConfigError) as refused:
        user_app.configured()

    assert str(refused.value).startswith("CANTATA_APP: ")
    assert message in str(refused.value)
