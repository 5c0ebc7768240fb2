"""Events are sent several to a message, and none is kept for longer than a moment; what is somebody else's is refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from celery import Task
from kombu import Queue

from cantata.engine.dispatch.celery_app import App, make_app
from cantata_workers.process import consumer, tasks


@pytest.fixture
def consumer_and_clock(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[float]]:
    """A consumer without a worker, and the clock it sees."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    subject = consumer.Consumer.__new__(consumer.Consumer)
    subject.hub = Mock()
    return subject, clock


def test_events_of_a_moment_are_flushed_together(consumer_and_clock: tuple[Any, list[float]]) -> None:
    subject, _ = consumer_and_clock

    for _ in range(5):
        subject.on_send_event_buffered()

    subject.hub.call_soon.assert_called_once_with(
        subject.hub.call_later, consumer.EVENT_INTERVAL_S, subject._flush_events
    )


def test_a_later_event_is_flushed_too(consumer_and_clock: tuple[Any, list[float]]) -> None:
    subject, clock = consumer_and_clock

    subject.on_send_event_buffered()
    clock[0] += consumer.EVENT_INTERVAL_S
    subject.on_send_event_buffered()

    assert subject.hub.call_soon.call_count == 2


@pytest.fixture
def app() -> App:
    """The app of a worker that serves two queues."""
    made = make_app("redis://127.0.0.1:1/0")
    tasks.register(made, Mock())
    made.amqp.queues.select(["cantata.tools", "cantata.shop"])
    return made


def started(app: App) -> Any:
    """A consumer of the app, right before it starts."""
    subject = consumer.Consumer.__new__(consumer.Consumer)
    subject.app, subject.hostname = app, "tools@here"
    return subject


def test_a_worker_with_its_own_queues_and_tasks_has_nothing_foreign(app: App) -> None:
    app.finalize()

    assert consumer.foreign(app) == ""


def test_a_worker_that_would_consume_a_queue_of_others_ends(app: App) -> None:
    app.amqp.queues.select_add(Queue("celery"))

    with pytest.raises(SystemExit) as ended:
        started(app).start()

    assert ended.value.code == 1
    assert consumer.foreign(app) == "it would consume the queue 'celery', which is not one of Cantata's (cantata....)"


def test_a_worker_that_would_execute_a_task_of_others_ends(app: App) -> None:
    class Sell(Task):  # type: ignore[type-arg]  # in the stubs only
        name = "shop.sell"

    app.register_task(Sell())

    with pytest.raises(SystemExit):
        started(app).start()

    assert "it would execute the task 'shop.sell', which is no step" in consumer.foreign(app)


def test_the_remote_command_for_a_queue_of_others_is_refused(app: App) -> None:
    subject = started(app)
    subject.task_consumer = Mock()
    subject.task_consumer.consuming_from.return_value = False

    subject.add_task_queue("celery")
    subject.add_task_queue("cantata.more")

    assert [call.args[0].name for call in subject.task_consumer.add_queue.call_args_list] == ["cantata.more"]
    assert "celery" not in app.amqp.queues.consume_from


@pytest.mark.parametrize(("payload", "is_step"), [
    ([["run", ["a"]], {}, {}], True), ([[7, ["a"]], {}, {}], False), ([["run"], {}, {}], False), ([[], {}, {}], False), (None, False),
])  # fmt: skip
def test_a_task_of_others_with_a_header_of_ours_is_kept(
    payload: Any, is_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, message, stored = (
        consumer.Consumer.__new__(consumer.Consumer),
        Mock(headers={"sent_at": 1.0}, payload=payload),
        [],
    )
    monkeypatch.setattr(consumer.Consumer, "_store", lambda _, message, reason: stored.append(reason))
    monkeypatch.setattr(consumer._CeleryConsumer, "on_unknown_task", Mock())

    subject.on_unknown_task(None, message, KeyError("shop.sell"))

    assert stored == ([] if is_step else ["no task is called 'shop.sell'"])
