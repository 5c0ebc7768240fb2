"""Tools of these tests. What they do they write into a file outside Redis, so that a test can tell what really happened."""

from __future__ import annotations

import os
import time
from pathlib import Path


def mark(journal: str, name: str, seconds: float = 0.0) -> str:
    """Write a line, then take some time."""
    with Path(journal).open("ab", buffering=0) as file:
        file.write(f"{name} {os.getpid()}\n".encode())
    time.sleep(seconds)
    return name


def add(a: float, b: float = 1) -> float:
    """Add."""
    return a + b
