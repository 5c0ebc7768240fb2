"""What canvases put on the wire: Celery's own messages, sent the short way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery, Task

from orchestrator.celeryapp import Carried, make_app, send
from orchestrator.planning.canvas import Canvas, Fan, Message, Row


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose broker is in memory; that it sends the short way is part of each test."""
    app = make_app("redis://localhost:1/0", "memory://")
    with patch.object(Celery, "send_task", side_effect=AssertionError("went Celery's own way")):
        yield app
    app.close()


def sent(app: Celery, *canvases: Canvas) -> list[Any]:
    send(app, "r", canvases)
    with app.connection_for_read() as connection, connection.channel() as channel:
        return list(iter(lambda: channel.basic_get("tools", no_ack=True), None))  # type: ignore[attr-defined]  # of every channel


def message(step: str, limit_s: float | None = None) -> Message:
    return Message("tool.call", "tools", (step,), limit_s)


def carried(raw: Any) -> Carried:
    return Carried(type("Request", (), raw.decode()[2]))


def test_a_message_names_its_steps_and_is_shown_with_them(app: Celery) -> None:
    [one] = sent(app, Fan((message("a", limit_s=60.0),)))

    assert one.decode()[0] == ["r", ["a"]]
    assert one.headers["argsrepr"] == "r:a"
    assert one.headers["timelimit"] == [90.0, None]
    assert one.headers["ignore_result"] is True
    assert one.headers["sent_at"] > 0


def test_a_row_is_a_chain(app: Celery) -> None:
    [first] = sent(app, Row((message("a"), message("b"), message("c"))))

    assert [link["args"][1] for link in first.decode()[2]["chain"]] == [["c"], ["b"]]
    assert carried(first).steps == {"b", "c"}


def test_messages_sent_at_once_share_a_group(app: Celery) -> None:
    first, second = sent(app, Fan((message("a"), message("b"))))

    assert first.headers["group"] == second.headers["group"] is not None
    assert [first.headers["group_index"], second.headers["group_index"]] == [0, 1]


def test_members_with_a_join_are_a_chord(app: Celery) -> None:
    members = sent(app, Fan((message("a"), message("b")), message("c")))

    assert [carried(member).join for member in members] == [{"c"}, {"c"}]


def test_what_celery_sends_after_a_step_goes_the_short_way_too(app: Celery) -> None:
    class Call(Task):  # type: ignore[type-arg]  # never runs
        name = "tool.call"
        ignore_result = True

    app.register_task(Call())
    [first] = sent(app, Row((message("a"), message("b"), message("c"))))
    *later, following = first.decode()[2]["chain"]

    app.signature(following).apply_async((None,), chain=later, parent_id="parent", root_id="root")

    [second] = sent(app)
    assert second.decode()[0] == ["r", ["b"]]
    assert carried(second).steps == {"c"}
    assert (second.headers["parent_id"], second.headers["root_id"]) == ("parent", "root")
