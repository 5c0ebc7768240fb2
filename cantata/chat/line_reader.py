"""Sources of the lines of a chat."""

from __future__ import annotations

import sys
from typing import Protocol


class LineReader(Protocol):
    """Reads the lines of a chat."""

    def read(self) -> str | None:
        """Return the next line; None at the end."""


class StandardInputReader:
    """Reads standard input, one turn a line."""

    def read(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
