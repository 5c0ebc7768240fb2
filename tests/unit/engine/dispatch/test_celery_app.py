"""What canvases put on the wire: Celery's own messages, sent the short way."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from amqp.exceptions import AccessRefused
from celery import Celery, Task, _state, chain, chord, group, shared_task
from celery.app.trace import reset_worker_optimizations, setup_worker_optimizations
from kombu import Connection

from cantata.engine.dispatch.celery_app import App, Carried, LedgerBackend, make_app, send
from cantata.engine.dispatch.queues import waiting
from cantata.errors import ConfigError, UnavailableError
from cantata.flows.canvas import Canvas, MessageHead
from cantata.ledger.redis import clock


@pytest.mark.parametrize("url", ["carrier://u:geheim@host", "amqp://u:geheim@host:port:1//"])
def test_an_address_of_no_broker_is_a_fault_that_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="CANTATA_BROKER_URL") as caught:
        make_app("redis://localhost:1/0", url)

    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis+socket:///tmp/valkey.sock", "redis://:geheim@host:1/0", "redis+sentinel://:geheim@a:1,b:2/main"]
)
def test_flower_is_told_the_settings_of_a_worker_without_passwords(url: str) -> None:
    assert "geheim" not in str(make_app(url).conf.table()), "celery inspect conf"


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        (
            None,
            "the broker: Redis cannot be reached (Error 111 connecting to 127.0.0.1:1. Connection refused); start it or correct REDIS_URL",
        ),
        (
            "redis://:geheim@127.0.0.1:1/3",
            "the broker: Redis at redis://:***@127.0.0.1:1/3 cannot be reached (Error 111 connecting to 127.0.0.1:1. Connection refused); "
            "start it or correct CANTATA_BROKER_URL",
        ),
        (
            "amqp://u:geheim@127.0.0.1:1//",
            "the broker at amqp://u:***@127.0.0.1:1// cannot be used ([Errno 111] Connection refused); "
            "start it or correct CANTATA_BROKER_URL",
        ),
    ],
)
def test_of_a_broker_that_is_away_it_is_said_which_and_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, broker: str | None, said: str
) -> None:
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)  # for 2 s, before it tries again
    app = make_app("redis://127.0.0.1:1/0", broker)

    with pytest.raises(UnavailableError) as caught:
        waiting(app, ["tools"])

    assert str(caught.value) == said


def test_a_password_that_rabbitmq_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AccessRefused("ACCESS_REFUSED - Login was refused", (0, 0), "")

    monkeypatch.setattr(Connection, "ensure_connection", refused)

    with pytest.raises(UnavailableError, match=r"the broker at amqp://h// cannot be used .*ACCESS_REFUSED"):
        waiting(make_app("redis://127.0.0.1:1/0", "amqp://h//"), ["tools"])


CELERYS_OWN = Celery.send_task


class Call(Task):  # type: ignore[type-arg]  # never runs
    name = "tool.call"
    ignore_result = True


@pytest.fixture
def app() -> Iterator[App]:
    """An app whose broker is in memory; that it sends the short way is part of each test."""
    app = make_app("redis://localhost:1/0", "memory://")
    app.register_task(Call())
    with patch.object(Celery, "send_task", side_effect=AssertionError("went Celery's own way")):
        yield app
    app.close()


def received(app: App) -> list[Any]:
    with app.connection_for_read() as connection, connection.channel() as channel:
        return list(iter(lambda: channel.basic_get("cantata.tools", no_ack=True), None))  # type: ignore[attr-defined]  # of every channel


def sent(app: App, *canvases: Canvas) -> list[Any]:
    send(app, canvases)
    return received(app)


def signature(app: App, step: str, limit_s: float | None = None) -> Canvas:
    return MessageHead(app, "r").signature("tool.call", "tools", [step], limit_s)


def row(app: App, *steps: str) -> Canvas:
    return chain(*(signature(app, step) for step in steps), app=app)


def carried(raw: Any) -> Carried:
    return Carried(type("Request", (), raw.decode()[2]))


def test_a_message_names_its_steps_and_is_shown_with_them(app: App) -> None:
    [one] = sent(app, signature(app, "a", limit_s=60.0))

    assert one.decode()[0] == ["r", ["a"]]
    assert one.headers["argsrepr"] == "r:tool.call(a)"
    assert one.headers["timelimit"] == [90.0, None]
    assert one.headers["ignore_result"] is True
    assert one.headers["sent_at"] > 0


CANVASES: dict[str, Callable[[App], Canvas]] = {
    "signature": lambda app: MessageHead(app, "r", 3).signature("tool.call", "tools", ["a", "b"], 60.0),
    "chain": lambda app: row(app, "a", "b", "c"),
    "group": lambda app: group([signature(app, "a"), signature(app, "b")], app=app),
    "chord": lambda app: chord(group([signature(app, "a"), signature(app, "b")]), signature(app, "c", 60.0), app=app),
    "group of chains": lambda app: group([row(app, "a", "b", "c"), row(app, "d", "e"), signature(app, "f")], app=app),
    "chord of chains": lambda app: chord(
        group([row(app, "a", "b", "c"), row(app, "d", "e")]), signature(app, "f"), app=app
    ),
}


@pytest.mark.parametrize("canvas", CANVASES.values(), ids=CANVASES)
def test_a_canvas_puts_on_the_wire_what_celery_puts_there(app: App, canvas: Callable[[App], Canvas]) -> None:
    ours = sent(app, canvas(app))
    with patch.object(App, "send_task", CELERYS_OWN):
        canvas(app).apply_async()
    celerys = received(app)

    assert len(ours) > 0
    assert named_alike(map(plain, ours)) == named_alike(plain_of_celery(raw, app) for raw in celerys)


def plain(raw: Any) -> dict[str, Any]:
    """A message as it is sent the short way, but for what Celery's own does not have."""
    message = whole(raw)
    assert message["headers"].pop("sent_at") > 0, "from which the sweep tells whether a message is lost"
    return message


def plain_of_celery(raw: Any, app: App) -> dict[str, Any]:
    """A message as Celery sends it, but for what is left out of ours: all of it serves results, and nobody waits for one."""
    message = whole(raw)
    headers, properties = message["headers"], message["properties"]
    assert (properties.pop("argsrepr"), properties.pop("kwargsrepr")) == (headers["argsrepr"], headers["kwargsrepr"]), (
        "told twice"
    )
    assert properties["reply_to"] == app.thread_oid
    properties["reply_to"] = ""
    _, _, embed = message["body"]
    links = embed["chain"] or []
    bodies = [each["options"]["chord"] for each in links if "chord" in each["options"]] + (
        [embed["chord"]] if embed["chord"] else []
    )
    for body in bodies:
        del body["options"]["group_id"]  # the join is no member of the group that it waits for
    for each in links + bodies:
        del each["options"]["task_id"], each["options"]["reply_to"]  # an id is given to what is sent
    return message


def whole(raw: Any) -> dict[str, Any]:
    parts = {
        name: getattr(raw, name)
        for name in ("headers", "properties", "content_type", "content_encoding", "delivery_info")
    }
    return copy.deepcopy({**parts, "body": raw.decode()})


def named_alike(messages: Iterable[dict[str, Any]]) -> list[Any]:
    """Messages with each random id replaced by its place among those that were seen, so that equal ids stay equal."""
    seen: dict[str, str] = {}
    text = json.dumps(list(messages), sort_keys=True)
    parsed: list[Any] = json.loads(
        re.sub(r"\w{8}(-\w{4}){3}-\w{12}", lambda found: seen.setdefault(found[0], f"id {len(seen)}"), text)
    )
    return parsed


def test_messages_sent_at_once_share_a_group(app: App) -> None:
    first, second = sent(app, CANVASES["group"](app))

    assert first.headers["group"] == second.headers["group"] is not None
    assert [first.headers["group_index"], second.headers["group_index"]] == [0, 1]


def test_what_celery_sends_after_a_message_is_known_to_who_has_it(app: App) -> None:
    [first] = sent(app, CANVASES["chain"](app))
    members = sent(app, CANVASES["chord"](app))

    assert carried(first).steps == {"b", "c"}
    assert [carried(member).join for member in members] == [{"c"}, {"c"}]


def test_what_celery_sends_after_a_step_goes_the_short_way_too(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    [first] = sent(app, CANVASES["chain"](app))
    *later, following = first.decode()[2]["chain"]

    monkeypatch.setattr(clock, "now", lambda: first.headers["sent_at"] + 500.0)
    app.signature(following).apply_async((None,), chain=later, parent_id="parent", root_id="root")

    [second] = sent(app)
    assert second.headers["sent_at"] == first.headers["sent_at"] + 500.0, (
        "when it was sent, not when its canvas was built"
    )
    assert second.decode()[0] == ["r", ["b"]]
    assert carried(second).steps == {"c"}
    assert (second.headers["parent_id"], second.headers["root_id"]) == ("parent", "root")


def test_the_last_link_of_a_row_carries_the_join_of_its_chord(app: App) -> None:
    first, _ = sent(app, CANVASES["chord of chains"](app))
    assert carried(first).steps == {"b", "c"}
    last, _ = first.decode()[2]["chain"]

    app.signature(last).apply_async((None,), chain=[], parent_id="parent", root_id="root")

    [member] = sent(app)
    assert member.headers["group_index"] == 0
    assert carried(member).join == {"f"}


@pytest.mark.parametrize("answer", ["joined", None])
def test_behind_a_task_that_raises_the_next_link_or_the_join_goes_out_as_celery_sends_it(
    app: App, answer: str | None
) -> None:
    [first] = sent(app, CANVASES["chain"](app))
    [member, _] = sent(app, CANVASES["chord"](app))
    request = SimpleNamespace(chain=first.decode()[2]["chain"], chord=member.decode()[2]["chord"])

    Carried(request).send(app, answer)

    second, *join = sent(app)
    assert second.decode()[0] == ["r", ["b"]]
    assert carried(second).steps == {"c"}
    assert [raw.decode()[0] for raw in join] == ([["r", ["c"]]] if answer else [])
    assert request.chain is None, "nor does Celery send it again, or look for who waits for it"


def test_all_that_is_named_in_a_broker_begins_with_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_NAMESPACE", "second")
    conf = make_app("redis://here").conf

    names = [conf.task_default_queue, conf.control_exchange, conf.event_exchange, conf.event_queue_prefix]
    prefixes = [value for name, value in conf.broker_transport_options.items() if name.startswith("keyprefix_")]
    assert len(prefixes) == 3
    assert [name for name in (*names, *prefixes) if not name.startswith(("second.", "second:"))] == []
    assert make_app("redis://here", namespace="third").broker_queue("tools") == "third.tools"


@pytest.mark.parametrize("name", ["Cantata", "a.b", "a:b", "a{b}", "", "x" * 41, "celery"])
def test_what_cannot_be_a_namespace_is_told(name: str) -> None:
    with pytest.raises(ConfigError, match=r"a namespace has 1 to 40 of a-z, 0-9, _ and -"):
        make_app("redis://here", namespace=name)


def test_our_app_is_nobodys_current_or_default_app(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = Celery("shop", set_as_current=False), make_app("redis://localhost:1/0")
    monkeypatch.setattr(_state, "default_app", theirs)
    monkeypatch.setattr("celery._state._tls.current_app", None)

    setup_worker_optimizations(ours, "here")  # as Celery's worker does, for which its app is that of the process

    assert _state.get_current_app() is theirs
    reset_worker_optimizations(ours)


def test_our_app_has_no_task_that_is_no_step() -> None:
    ours, theirs = make_app("redis://localhost:1/0"), Celery("shop", set_as_current=False)

    @theirs.task(name="shop.before")
    def before() -> None: ...

    @shared_task(name="shop.shared_before")
    def shared_before() -> None: ...

    ours.finalize()

    @theirs.task(name="shop.after")
    def after() -> None: ...

    @shared_task(name="shop.shared_after")
    def shared_after() -> None: ...

    assert list(ours.tasks) == []
    assert {"shop.before", "shop.shared_before", "shop.after", "shop.shared_after"} <= set(theirs.tasks)


def test_the_variables_of_the_users_celery_are_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("task_queues = [1 / 0]")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CELERY_LOADER", "default")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://theirs:1/1")
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        monkeypatch.setenv(name, "amqp://theirs:1//")

    app = make_app("redis://ours:1/0")

    made = [app.connection_for_read(), app.connection_for_write(), app.connection()]
    assert {connection.as_uri() for connection in made} == {
        "cantata.engine.dispatch.transport:Transport://:**@ours:1/0"
    }
    assert isinstance(app.backend, LedgerBackend)
    assert (
        app.connection_for_read("redis://one:1/3").as_uri()
        == "cantata.engine.dispatch.transport:Transport://:**@one:1/3"
    )


def test_a_process_that_must_send_refuses_no_broker() -> None:
    with pytest.raises(ConfigError, match="CANTATA_BROKER_URL is 'none', which is for programs that submit runs"):
        make_app("redis://127.0.0.1:1", "none")
