"""Lines of the run log."""

from __future__ import annotations

import json
from typing import NamedTuple

from cantata.models.values import JsonValue

Fields = dict[str, JsonValue]


class LogEntry(NamedTuple):
    """One line: what happened, what is known of it, and when, by Redis's clock."""

    event: str
    fields: Fields
    at_ms: int | None = None


def text_of(value: JsonValue) -> str:
    """An answer as text; what is no text is JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def length_of(value: JsonValue) -> int:
    """How long an answer is, as text."""
    return len(text_of(value))
