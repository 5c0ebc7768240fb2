"""Entries of the run log."""

from __future__ import annotations

import json
from typing import NamedTuple

from cantata.models.values import JsonValue

Fields = dict[str, JsonValue]


class LogEntry(NamedTuple):
    """One entry: the event name, its fields, and its time by Redis's clock."""

    event: str
    fields: Fields
    at_ms: int | None = None


def text_of(value: JsonValue) -> str:
    """Return an answer as text; anything but a text as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def length_of(value: JsonValue) -> int:
    """Return the length of an answer as text."""
    return len(text_of(value))
