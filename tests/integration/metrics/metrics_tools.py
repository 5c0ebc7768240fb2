"""Tools of the metrics tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

PATIENCE_S = 60.0
TICK_S = 0.02


def add(a: float) -> float:
    """Add one."""
    return a + 1


def fail() -> None:
    """Raise."""
    raise ValueError("no luck")


def gate(folder: str, mark: str) -> str:
    """Say who does this, and go on once the gate is open."""
    Path(folder, f"{mark}.pid").write_text(str(os.getpid()))
    give_up = time.monotonic() + PATIENCE_S
    while not Path(folder, "open").exists():
        if time.monotonic() > give_up:
            raise TimeoutError("nobody opened the gate")
        time.sleep(TICK_S)
    return mark
