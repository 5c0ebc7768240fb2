"""Schedules: exactly one time and one target, durations as people write them, faults that say what to write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from cantata.flows.schedules import Schedule, format_seconds

TURN: dict[str, Any] = {"turn": {"text": "Good morning"}}


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172_800), (45, 45), ("1.5h", 5400)]
)
def test_a_duration_is_a_number_of_seconds_or_has_units(written: object, seconds: float) -> None:
    assert Schedule.model_validate({"every": written, **TURN}).every == seconds


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (90, "1m30s"), (5400, "1h30m"), (172_800, "2d"), (0.5, "0.5s")])
def test_a_duration_is_shown_as_it_is_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**TURN}, "one of 'cron', 'every', 'at'; this one has none"),
        ({"cron": "0 7 * * *", "every": "1h", **TURN}, "this one has 'cron' and 'every'"),
        ({"every": "1h"}, "one of 'turn', 'chain', 'workflow'; this one has none"),
        ({"every": "1h", "chain": "a", **TURN}, "this one has 'turn' and 'chain'"),
        ({"every": "soon", **TURN}, "expected a duration such as '90s', '10m' or '1h30m', not 'soon'"),
        ({"every": "1s" * 501, **TURN}, "a duration has at most 1,000 characters"),
        ({"cron": "1," * 500 + "1 * * * *", **TURN}, "a cron expression has at most 1,000 characters"),
        ({"every": "0s", **TURN}, "greater than or equal to 1"),
        ({"cron": "0 7 * *", **TURN}, "expected five fields"),
        ({"cron": "0 0 7 * * *", **TURN}, "expected five fields"),
        ({"cron": "0 25 * * *", **TURN}, "'0 25 * * *' is no cron expression: bad hour"),
        ({"cron": "0 0 30 2 *", **TURN}, "'0 0 30 2 *' is no cron expression"),
        ({"cron": "0 7 * * *", "timezone": "Europe/Berlim", **TURN}, "there is no time zone 'Europe/Berlim'"),
        ({"cron": "0 7 * * *", "timezone": "../etc/passwd", **TURN}, "there is no time zone"),
        ({"every": "1h", "turn": {"text": "a", "session": "{date}"}}, "write a name without placeholders"),
        ({"every": "1h", "input": {"a": 1}, **TURN}, "'input' belongs to a chain or workflow"),
    ],
)
def test_a_fault_says_what_to_write(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Schedule.model_validate(fields)

    assert message in str(caught.value)


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
        {"cron": "0 7 * jan-mar mon#1", "timezone": "Europe/Berlin", "jitter": "5m", "labels": {"tenant": "acme"}, **TURN}
    )

    assert Schedule.model_validate_json(schedule.model_dump_json(exclude_defaults=True)) == schedule
    assert schedule.tenant == "acme"


def test_only_what_decides_the_times_is_its_timing() -> None:
    schedule = Schedule.model_validate({"every": "1h", **TURN})

    assert schedule.timing() == schedule.model_copy(update={"note": "new", "overlap": "queue"}).timing()
    assert schedule.timing() != schedule.model_copy(update={"jitter": 5.0}).timing()
