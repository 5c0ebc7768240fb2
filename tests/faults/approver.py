"""Gives waiting steps their values, as a person would: before the run waits, while it does, and once more when it is too late."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cantata.client.runs import Run
from cantata.errors import UnavailableError
from cantata.ledger.runs.results import is_over

LOOK_S = 0.05
EARLY = "early"
"""The step whose value is told before the run waits for it; others are told when they wait."""
MAX_AT_ONCE = 30
TOO_LATE = -1000


class Approver:
    """Tells in threads, however often Redis is away meanwhile."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, "approver")

    def approve(self, run: Run, signals: Mapping[str, int]) -> None:
        """Tell a run's steps their values; another value that comes afterwards changes nothing."""
        for step, value in signals.items():
            self._threads.submit(self._tell, run, step, value)

    def close(self) -> None:
        """Tell no more."""
        self._ended.set()
        self._threads.shutdown()

    def _tell(self, run: Run, step: str, value: int) -> None:
        while not self._ended.is_set():
            with suppress(UnavailableError):
                if is_over(run.status()):
                    return
                if step == EARLY or _is_waiting(run, step):
                    run.signal(step, value)
                    run.signal(step, TOO_LATE)
                    return
            self._ended.wait(LOOK_S)


def _is_waiting(run: Run, step: str) -> bool:
    return step in (found := run.steps([step])) and found[step].state == "waiting_signal"
