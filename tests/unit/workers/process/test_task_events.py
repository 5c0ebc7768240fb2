"""Which attempt the task of a message stands for, and what Celery is to tell of it."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.events import EventReceiver
from kombu import Connection

from cantata.errors import StepError
from cantata.flows.graph import Outcome
from cantata_workers.process import task_events
from cantata_workers.process.task_events import Attempt, AttemptRetried, own_attempt


def attempt(step_id: str, status: str, reason: str = "bad") -> Attempt:
    return Attempt("tool.call", step_id, 1.0, 2.0, status, reason)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("done done", "a"),
        ("done failed", "b"),
        ("retry failed", "b"),
        ("wait retry", "b"),
        ("done wait", "b"),
        ("failed failed", "a"),
        ("dropped done", "a"),
        ("done done failed", "a"),  # the last ran ahead, and has events of its own
    ],
)
def test_a_message_stands_for_the_worst_end_of_its_steps(words: str, own: str) -> None:
    attempts = [attempt(step_id, status) for step_id, status in zip("abc", words.split(), strict=False)]

    found = own_attempt(["a", "b"], attempts)

    assert found is not None
    assert found.step_id == own


def test_a_message_of_which_nothing_began_stands_for_none() -> None:
    assert own_attempt(["a"], []) is None


def test_reported_exceptions_cross_from_child_to_parent() -> None:
    failed, again = (pickle.loads(pickle.dumps(attempt("a", status).exception)) for status in ("failed", "retry"))

    assert repr(failed) == repr(again) == repr(again.exc) == repr(StepError("step 'a': bad"))
    assert (type(failed), type(again)) == (StepError, AttemptRetried)
    assert attempt("a", "done").exception is None


def test_an_attempt_that_waits_for_a_limit_is_tried_again_and_says_why() -> None:
    waits = attempt("a", "dropped", "").ended(
        Outcome(status="wait", retry_in_s=3.0, detail={"reason": "calls a minute of 'm'"})
    )

    assert repr(waits.exception) == repr(StepError("step 'a': waits: calls a minute of 'm'"))
    assert isinstance(waits.exception, AttemptRetried)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "Asia/Kolkata", "America/New_York"])
def test_who_receives_the_events_has_their_times_in_any_time_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("ours", set_as_current=False)
    app.conf.worker_send_task_events = True
    request = SimpleNamespace(id="1", hostname="here", root_id="1")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    published: list[dict[str, object]] = []
    monkeypatch.setattr(task_events, "_pending", published)
    try:
        task_events.publish_ahead_attempts(SimpleNamespace(app=app, request=request), "run", [attempt("a", "done")])  # type: ignore[arg-type]
        receiver = EventReceiver(Connection("memory://"), app=app)
        received = [receiver.event_from_message(dict(event))[1]["timestamp"] for event in published]
    finally:
        monkeypatch.undo()
        time.tzset()

    assert received == [1.0, 1.0, 2.0]
