"""Events are sent several to a message, and none is kept for longer than a moment."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from cantata.workers.runtime import consumer


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

    subject.hub.call_soon.assert_called_once_with(subject.hub.call_later, consumer.EVENT_INTERVAL_S, subject._flush_events)


def test_a_later_event_is_flushed_too(consumer_and_clock: tuple[Any, list[float]]) -> None:
    subject, clock = consumer_and_clock

    subject.on_send_event_buffered()
    clock[0] += consumer.EVENT_INTERVAL_S
    subject.on_send_event_buffered()

    assert subject.hub.call_soon.call_count == 2
