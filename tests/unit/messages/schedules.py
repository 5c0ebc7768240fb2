"""Bad schedules and cron lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cantata.config.faults import checked
from cantata.flows.schedules import Schedule
from tests.unit.messages.entries import Entry, data, entries, said_by

TURN: dict[str, Any] = {"turn": {"text": "Good morning"}}
SCHEDULES: dict[str, list[dict[str, Any]]] = {
    "schedules": [
        {**TURN},
        {"cron": "0 7 * * *", "every": "1h", **TURN},
        {"every": "1h"},
        {"every": "1h", "chain": "a", **TURN},
        {"every": "soon", **TURN},
        {"every": "1s" * 501, **TURN},
        {"cron": "1," * 500 + "1 * * * *", **TURN},
        {"every": "0s", **TURN},
        {"cron": "0 7 * *", **TURN},
        {"cron": "0 0 7 * * *", **TURN},
        {"cron": "0 25 * * *", **TURN},
        {"cron": "0 0 30 2 *", **TURN},
        {"cron": "0 7 * * *", "timezone": "Europe/Berlim", **TURN},
        {"cron": "0 7 * * *", "timezone": "../etc/passwd", **TURN},
        {"every": "1h", "turn": {"text": "a", "session": "{date}"}},
        {"every": "1h", "input": {"a": 1}, **TURN},
    ],
}


def found() -> Iterator[Entry]:
    """Check each of them."""
    yield from entries(SCHEDULES, lambda fields: said_by(lambda: checked(Schedule, fields, source="")), data)
