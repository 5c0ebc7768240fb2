"""Truncation of large values for display. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cantata.values import JsonValue

MAX_CHARS = 20_000
"""Of one value."""


@dataclass(slots=True)
class Truncation:
    """Truncates values, and records whether it did."""

    max_chars: int = MAX_CHARS
    was_cut: bool = False

    def value(self, value: JsonValue) -> JsonValue:
        """Return the value; of a large one the beginning of its JSON, as text."""
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            return value
        text = json.dumps(value, ensure_ascii=False)
        return value if len(text) <= self.max_chars else self.text(text)

    def text(self, text: str) -> str:
        """Return the text, or its beginning."""
        if len(text) <= self.max_chars:
            return text
        self.was_cut = True
        return text[: self.max_chars]
