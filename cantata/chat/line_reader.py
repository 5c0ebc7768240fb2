"""Where the lines of a chat come from, if not from a person at a terminal."""

from __future__ import annotations

import sys
from typing import Protocol


class LineReader(Protocol):
    """Gives the lines of a chat."""

    def read(self) -> str | None:
        """The next line; None at the end."""


class StandardInputReader:
    """Standard input, a turn a line."""

    def read(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
