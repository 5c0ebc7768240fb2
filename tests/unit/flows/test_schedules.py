"""Schedules: exactly one time and one target, durations as people write them, faults that say what to write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cantata.flows.schedules import Schedule, format_seconds

TURN: dict[str, Any] = {"turn": {"text": "Good morning"}}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172_800), (45, 45), ("1.5h", 5400)],
)
def test_a_duration_is_a_number_of_seconds_or_has_units(written: object, seconds: float) -> None:
    assert Schedule.model_validate({"every": written, **TURN}).every == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (90, "1m30s"), (5400, "1h30m"), (172_800, "2d"), (0.5, "0.5s")]
)
def test_a_duration_is_shown_as_it_is_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("at", "zone", "expected"),
    [
        ("2030-05-01T09:00", "Europe/Berlin", datetime(2030, 5, 1, 7, tzinfo=UTC)),
        ("2030-05-01T09:00+02:00", "America/New_York", datetime(2030, 5, 1, 7, tzinfo=UTC)),
        ("2030-03-31T02:30", "Europe/Berlin", datetime(2030, 3, 31, 1, 30, tzinfo=UTC)),  # skipped: 03:30 in summer
        ("2030-10-27T02:30", "Europe/Berlin", datetime(2030, 10, 27, 0, 30, tzinfo=UTC)),  # twice: the first of both
    ],
)
def test_one_date_is_in_its_time_zone(at: str, zone: str, expected: datetime) -> None:
    assert Schedule.model_validate({"at": at, "timezone": zone, **TURN}).at_ms == expected.timestamp() * 1000


def test_a_schedule_reads_what_it_wrote() -> None:
    schedule = Schedule.model_validate(
        {
            "cron": "0 7 * jan-mar mon#1",
            "timezone": "Europe/Berlin",
            "jitter": "5m",
            "labels": {"tenant": "acme"},
            **TURN,
        }
    )

    assert Schedule.model_validate_json(schedule.model_dump_json(exclude_defaults=True)) == schedule
    assert schedule.tenant == "acme"


def test_only_what_decides_the_times_is_its_timing() -> None:
    schedule = Schedule.model_validate({"every": "1h", **TURN})

    assert schedule.timing() == schedule.model_copy(update={"note": "new", "overlap": "queue"}).timing()
    assert schedule.timing() != schedule.model_copy(update={"jitter": 5.0}).timing()
