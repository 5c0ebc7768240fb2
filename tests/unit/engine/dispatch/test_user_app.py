"""The user's own Celery application: found, and asked for its broker and its Redis."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state, current_app
from kombu import Queue

from cantata.engine.dispatch import user_app
from cantata.engine.dispatch.celery_app import make_app
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


NEEDS_MORE = [
    shop("sentinel://one:1"), shop([REDIS, REDIS]), shop("rediss://one:1", broker_use_ssl={"ssl_cert_reqs": None}), shop("sqs://")
]  # fmt: skip


@pytest.mark.parametrize("app", NEEDS_MORE)
def test_a_broker_with_more_settings_than_its_address_must_be_named(app: Celery) -> None:
    with pytest.raises(ConfigError, match="CANTATA_BROKER_URL"):
        make_app(REDIS, beside=app)


@pytest.mark.parametrize("app", NEEDS_MORE)
@pytest.mark.parametrize("named", [REDIS, RABBIT])
def test_beside_such_a_broker_our_own_is_the_one_that_is_named(app: Celery, named: str) -> None:
    assert make_app(REDIS, named, beside=app).conf.broker_url == named


def test_our_app_shares_its_broker_and_events_but_no_queue_and_no_remote_control() -> None:
    theirs = shop(RABBIT, event_exchange="theirs", broker_heartbeat=7)

    ours = make_app(REDIS, beside=theirs).conf

    assert (ours.broker_url, ours.event_exchange, ours.broker_heartbeat) == (RABBIT, "theirs", 7)
    assert (ours.control_exchange, ours.task_default_queue) == ("cantata:control", "cantata.coordinator")


def own_task() -> None: ...


def broken_route(name: str, args: object, kwargs: dict[str, object], options: object, **_: object) -> str:
    return str(kwargs["country"])


@pytest.mark.parametrize(
    ("conf", "name", "given", "queue"),
    [
        ({}, "shop.pay", None, "celery"),
        ({"task_default_queue": "default"}, "shop.pay", None, "default"),
        ({"task_routes": {"shop.*": {"queue": "money"}}}, "shop.pay", None, "money"),
        ({"task_routes": {"shop.*": {"queue": "money"}}}, "shop.pay", "vip", "vip"),
        ({}, "shop.own", None, "slow"),
        ({"task_routes": [broken_route]}, "shop.pay", None, ""),
    ],
)
def test_the_queue_of_a_task_is_that_of_its_tool_its_options_its_routes_or_the_default(
    conf: dict[str, Any], name: str, given: str | None, queue: str
) -> None:
    app = shop(REDIS, **conf)
    app.task(name="shop.own", shared=False)(own_task)
    app.tasks["shop.own"].queue = "slow"  # type: ignore[attr-defined]  # the stubs lack it

    assert user_app.queue_of(app, name, given) == queue


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


FACTORY = """
from celery import Celery, current_app
from types import SimpleNamespace

from flask import Flask

def create_celery(broker="redis://one:1/0"):
    return Celery("shop", broker=broker, set_as_current=False)

def create_app():
    made = Flask('shop')
    made.extensions["celery"] = create_celery()
    return made

def create(config): ...
"""
FORMS = {
    "current_app": ("shop_app:app", "made = create_celery()\nmade.set_current()\napp = current_app\n"),
    "current_app of another default": (
        "shop_app:app",
        "made = create_celery()\nmade.set_default()\napp = current_app\n",
    ),
    "a module that imported current_app": ("shop_app", "capp = create_celery()\n"),
    "PromiseProxy": ("shop_app:app", "from celery.local import PromiseProxy\napp = PromiseProxy(create_celery)\n"),
    "LocalProxy": (
        "shop_app:app",
        "from werkzeug.local import LocalProxy\nmade = create_celery()\napp = LocalProxy(lambda: made)\n",
    ),
    "a lazy object of Django": (
        "shop_app:app",
        "from django.utils.functional import SimpleLazyObject\napp = SimpleLazyObject(create_celery)\n",
    ),
    "a proxy for a proxy": (
        "shop_app:app",
        "from celery.local import Proxy\ncreate_celery().set_current()\napp = Proxy(lambda: current_app)\n",
    ),
    "a function": ("shop_app:create_celery", ""),
    "a called function": ("shop_app:create_celery()", ""),
    "a factory of Flask": ("shop_app:create_app", ""),
    "an application of Flask": ("shop_app:flask_app", "flask_app = create_app()\n"),
    "a module with an application of Flask": ("shop_app", "app = create_app()\n"),
    "a proxy in extensions": (
        "shop_app:flask_app",
        "flask_app = create_app()\nflask_app.extensions['celery'].set_current()\nflask_app.extensions['celery'] = current_app\n",
    ),
    "set_as_current=False": ("shop_app:app", "app = create_celery()\n"),
    "settings of Django": (
        "shop_app:app",
        "app = Celery('shop')\napp.config_from_object(SimpleNamespace(CELERY_BROKER_URL='redis://one:1/0'), namespace='CELERY')\n",
    ),
}


@pytest.fixture
def shop_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a module `shop_app`; what it makes current is so no longer after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr("celery._state._tls.current_app", None)
    user_app.find.cache_clear()
    yield tmp_path
    user_app.find.cache_clear()
    sys.modules.pop("shop_app", None)


@pytest.mark.parametrize(("name", "text"), FORMS.values(), ids=FORMS)
def test_every_form_of_an_application_is_the_application_itself(shop_module: Path, name: str, text: str) -> None:
    (shop_module / "shop_app.py").write_text(FACTORY + text)

    found = user_app.find(name)

    make_app(REDIS).set_current()  # as Celery's worker does with ours
    assert (type(found), found.main, found.conf.broker_url) == (Celery, "shop", REDIS)
    assert user_app.find(name) is found


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("shop_app:app", "app = current_app\nfrom cantata.engine.dispatch.celery_app import make_app\n_state.default_app = make_app('redis://one')\n",
         "'shop_app:app' is Cantata's own Celery application; expected the one of your project"),
        ("shop_app:app", "from cantata.engine.dispatch.celery_app import app\n", "is Cantata's own Celery application"),
        ("shop_app:create", "", "'shop_app:create' is a function that needs config; name the application that it returns"),
        ("shop_app:app", "app = SimpleNamespace(extensions={})\n", "is of type SimpleNamespace; expected a Celery application"),
        ("shop_app:app", "from celery.local import Proxy\napp = Proxy(lambda: 1 / 0)\n", "ZeroDivisionError"),
        ("shop_app:create", "def create(): ...\n", "'shop_app:create' is of type NoneType; expected a Celery application"),
    ],
)  # fmt: skip
def test_what_is_no_application_of_a_project_is_refused(shop_module: Path, name: str, text: str, message: str) -> None:
    (shop_module / "shop_app.py").write_text("from celery import _state\n" + FACTORY + text)

    with pytest.raises(ConfigError, match=re.escape(message)):
        user_app.find(name)


def test_a_client_is_given_a_proxy(shop_module: Path) -> None:
    theirs = shop(RABBIT)
    theirs.set_current()

    assert user_app.resolve(current_app) is theirs
    with pytest.raises(ConfigError, match="expected a Celery application"):
        user_app.resolve("shop:app")


@pytest.mark.parametrize(
    "conf",
    [
        {"task_default_queue": "cantata.tools"},
        {"task_queues": [Queue("a"), Queue("cantata.replies")]},
        {"task_queues": ["cantata.x"]},
    ],
)
def test_an_application_whose_queue_is_named_like_ours_is_refused(conf: dict[str, Any]) -> None:
    theirs = shop(RABBIT, **conf)

    with pytest.raises(
        ConfigError,
        match=r"'shop' uses the queue 'cantata\.\w+', which is named like those of Cantata; rename it, or set",
    ):
        make_app(REDIS, beside=theirs)

    assert make_app(REDIS, beside=theirs, namespace="ours")
    assert make_app(REDIS, "redis://three:3", beside=theirs), "another broker"
