"""Keeps runs of mixed shapes under way, and submits each until it is accepted, whatever happens to Redis meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cantata.client.client import Client
from cantata.client.runs import Run
from cantata.errors import UnavailableError
from cantata.ledger.runs.results import is_over
from tests.faults.shapes import Shape
from tests.faults.stage import Stage

LOOK_S = 0.05
LINGERS_S = (0.0, 0.0, 0.0, 0.3, 1.5, 4.0, 8.0)
END_S = 180.0  # for the last runs, when all is healed

Choice = Callable[[random.Random], tuple[Client, Shape]]


class Load:
    """Submits what `choose` says so that `at_once` runs are under way, in a thread, from `start` to `end`."""

    def __init__(
        self, stage: Stage, seed: int, choose: Choice, *, at_once: int, lingers_s: Sequence[float] = LINGERS_S
    ) -> None:
        self._stage = stage
        self._chance = random.Random(seed)
        self._choose = choose
        self._at_once = at_once
        self._lingers_s = lingers_s
        self._ended = threading.Event()
        self._thread = ThreadPoolExecutor(1, "load")
        self.runs: list[Run] = []

    def start(self) -> None:
        """Begin."""
        self._done = self._thread.submit(self._keep_submitting)

    def end(self) -> None:
        """Submit no more, and wait until all runs are over, if they ever are: the checker tells. Raises what went wrong."""
        self._ended.set()
        self._done.result()
        self._thread.shutdown()
        with suppress(TimeoutError):
            for run in self.runs:
                run.wait(END_S)

    def _keep_submitting(self) -> None:
        under_way: list[Run] = []
        while not self._ended.wait(LOOK_S):
            under_way = [run for run in under_way if not self._is_over(run)]
            while len(under_way) < self._at_once and not self._ended.is_set():
                under_way.append(self._submit())

    def _submit(self) -> Run:
        client, shape = self._choose(self._chance)
        linger_s = self._chance.choice(self._lingers_s)
        tag = f"{shape.name}.{len(self.runs)}"
        while True:
            try:
                run = self._stage.submit(shape, tag, linger_s=linger_s, client=client)
            except UnavailableError:
                continue  # not accepted, or so it seems: the same tag is the same run
            self.runs.append(run)
            return run

    def _is_over(self, run: Run) -> bool:
        try:
            return is_over(run.status())
        except UnavailableError:
            return False
