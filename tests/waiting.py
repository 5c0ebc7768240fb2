"""Waits for conditions, never for time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 40.0  # for what takes a second on a machine with nothing else to do
MAX_PAUSE_S = 0.05
TRIES = 3


def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S, *, pause_s: float = 0.01) -> Any:
    """Wait for a condition and answer what it gave. Raises TimeoutError, naming what did not come.

    The longer it has waited, the longer it pauses between two looks, a tenth of that and 50 ms at most: looks take processor time from
    what is waited for.
    """
    since = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - since
        if waited_s > timeout_s:
            raise TimeoutError(f"{what} did not come within {timeout_s:g} s")
        time.sleep(max(pause_s, min(MAX_PAUSE_S, waited_s / 10)))
    return found


def freeze(pid: int) -> None:
    """Stop a process, all of its threads: on a busy machine some run on for tens of milliseconds after the signal."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    until(
        lambda: {path.read_text().rpartition(")")[2].split()[0] for path in threads.glob("*/stat")} == {"T"},
        f"the stop of {pid}",
    )


def when_busy(bound: float) -> float:
    """A bound that holds on a machine with nothing else to do, and as many times of it as each processor has processes that want to run."""
    return bound * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def at_best(measure: Callable[[], float], bound: float) -> float:
    """The least of some measurements, of no more than are needed to keep a bound: what a machine stalls is not what is measured."""
    found = measure()
    for _ in range(TRIES - 1):
        if found <= bound:
            break
        found = min(found, measure())
    return found
