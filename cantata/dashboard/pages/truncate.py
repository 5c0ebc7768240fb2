"""Large values, cut for a page. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cantata.models.values import JsonValue

MOST = 20_000
"""Characters of one value."""


@dataclass(slots=True)
class Truncation:
    """Cuts values, and remembers whether it had to."""

    most: int = MOST
    was_cut: bool = False

    def value(self, value: JsonValue) -> JsonValue:
        """The value; of a large one the beginning, as text."""
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            return value
        text = json.dumps(value, ensure_ascii=False)
        return value if len(text) <= self.most else self.text(text)

    def text(self, text: str) -> str:
        """The text, or its beginning."""
        if len(text) <= self.most:
            return text
        self.was_cut = True
        return text[: self.most]
