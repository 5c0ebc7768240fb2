"""What the chains of these tests call."""

from __future__ import annotations

import time
from pathlib import Path


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def hold(until: str) -> str:
    """Ends when there is a file of this name."""
    give_up = time.monotonic() + 100
    while not Path(until).exists():
        if time.monotonic() > give_up:
            raise TimeoutError(f"nobody made {until}")
        time.sleep(0.01)
    return "let go"
