"""Waits for conditions, never for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 40.0  # for what takes a second on a machine with nothing else to do
TRIES = 3


def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S, *, pause_s: float = 0.01) -> Any:
    """Wait for a condition and answer what it gave. Raises TimeoutError, naming what did not come."""
    give_up = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not come within {timeout_s:g} s")
        time.sleep(pause_s)
    return found


def at_best(measure: Callable[[], float], bound: float) -> float:
    """The least of some measurements, of no more than are needed to keep a bound: what a machine stalls is not what is measured."""
    found = measure()
    for _ in range(TRIES - 1):
        if found <= bound:
            break
        found = min(found, measure())
    return found
