"""Measures how long a step of a killed worker waits until it runs again elsewhere; and sees that the step of a live one is not doubled."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice

from cantata.engine.dispatch import queues
from tests.faults.journal import Line
from tests.faults.past import Violation
from tests.faults.processes import children
from tests.faults.shapes import backlog, blocking, lone
from tests.faults.stage import Stage, end
from tests.waiting import until

QUEUE = "recovery"
CREW = 3  # workers, so that two are left while a third starts
STEPS_S = (0.1, 0.5, 2.0, 10.0, 60.0)
AT_ONCE = 10_000  # steps of one run that may wait in a queue
BOUND_S, WISH_S = 6.0, 2.0  # of the 99th and of the 50th percentile
PATIENCE_S = 200.0  # a step of a minute that is struck twice


@dataclass(frozen=True)
class Recovery:
    """How long steps waited."""

    samples_s: Sequence[float]

    @property
    def p50_s(self) -> float:
        """What half of them did not exceed."""
        return statistics.median(self.samples_s)

    @property
    def p99_s(self) -> float:
        """What nearly all of them did not exceed."""
        return statistics.quantiles(self.samples_s, n=100, method="inclusive")[98]

    def violations(self) -> list[Violation]:
        """Whether the bound was kept; that the wish was not is only told."""
        worst = f"{self.p99_s:.2f} s over {len(self.samples_s)} steps"
        return (
            []
            if self.p99_s <= BOUND_S
            else [Violation("", "", f"99 of 100 steps run again within {BOUND_S:g} s", worst)]
        )

    def __str__(self) -> str:
        wish = "" if self.p50_s <= WISH_S else f" (wished: {WISH_S:g} s)"
        return f"{len(self.samples_s)} steps ran again: p50 {self.p50_s:.2f} s{wish}, p99 {self.p99_s:.2f} s"


class Crew:
    """Workers of one queue; for one that is killed another is started."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._workers = [stage.start_worker(QUEUE) for _ in range(CREW)]

    def wait_whole(self) -> None:
        """Wait until all take work."""
        for worker in self._workers:
            self._stage.wait_announced(worker.pid)

    def kill_worker_of(self, pid: int) -> tuple[float, list[int]]:
        """Kill a child's whole worker: when, and the children it had."""
        victim = next(worker for worker in self._workers if pid in children(worker.pid))
        pids = children(victim.pid)
        for each in pids:
            self._stage.journal.write("killed", pid=each)
        os.killpg(victim.pid, signal.SIGKILL)
        killed_at = time.time()
        victim.wait()
        self._workers[self._workers.index(victim)] = self._stage.start_worker(QUEUE)
        return killed_at, pids

    def children(self) -> set[int]:
        """The processes that do steps."""
        return {pid for worker in self._workers for pid in children(worker.pid)}

    def end(self) -> None:
        """Leave none."""
        for worker in self._workers:
            end(worker)


def measure(stage: Stage, kills: int, steps_s: Sequence[float] = STEPS_S, *, label: str = "recovery") -> Recovery:
    """Kill a whole worker so often, each time when a step on it has just begun; how long each of its steps then waited."""
    crew, runs = Crew(stage), []
    samples_s: list[float] = []
    try:
        for number, seconds in enumerate(islice(cycle(steps_s), kills)):
            crew.wait_whole()
            run = stage.submit(lone(QUEUE), f"{label}.{number}", linger_s=seconds)
            runs.append(run)
            samples_s += _kill(stage, crew, _started(stage, run.run_id, "only", 1).pid)
        for run in runs:
            run.wait(PATIENCE_S)
    finally:
        crew.end()
    return Recovery(samples_s)


def measure_behind(stage: Stage, kills: int, waiting: int) -> tuple[Recovery, Recovery]:
    """Kill a whole worker so often while so many steps wait in its queue; how long each of the steps it was doing then waited.

    First until it was taken from the dead worker and sent again; then until it ran: all slots are busy with steps of two seconds.
    """
    crew, samples_s = Crew(stage), list[float]()
    killed_at: dict[tuple[str, str | None, int | None], float] = {}
    runs = [stage.client.submit_chain(backlog(QUEUE, stage.journal.path, AT_ONCE)) for _ in range(waiting // AT_ONCE)]
    try:
        until(
            lambda: queues.waiting(stage.client.app, [QUEUE])[QUEUE].count > waiting - 2 * AT_ONCE,
            "the backlog",
            PATIENCE_S,
        )
        for _ in range(kills):
            crew.wait_whole()
            at, pids = crew.kill_worker_of(until(lambda: _busy(stage, crew), "a step of the backlog", PATIENCE_S))
            cut = _cut(stage, pids)
            killed_at |= {(line.run_id, line.step_id, line.attempt): at for line in cut}
            samples_s += [_again(stage, line) - at for line in cut]
        left = queues.waiting(stage.client.app, [QUEUE])[QUEUE].count
        assert waiting // 2 < left <= 1.05 * waiting, (
            f"{left} messages for {waiting} steps: most wait, and few are copied"
        )
    finally:
        crew.end()
        for run in runs:
            run.cancel()
    told = (
        (event, (event.run_id, event.step, event.attempt))
        for run in runs
        for event in run.log()
        if event.type == "lost"
    )
    return Recovery([event.at_ms / 1000 - killed_at[which] for event, which in told if which in killed_at]), Recovery(
        samples_s
    )


@contextmanager
def blocked(stage: Stage, seconds: float, blocks_s: float) -> Iterator[None]:
    """Meanwhile a step runs on a worker of its own, which is longer than any lease and keeps its event loop from beating; once, we hope."""
    with stage.extra_worker("apart"):
        run = stage.submit(blocking(blocks_s), "blocked", linger_s=seconds)
        yield
        assert run.wait(seconds + PATIENCE_S).steps["only"].attempt == 1, f"the step of {run} has a live worker"


def _kill(stage: Stage, crew: Crew, pid: int) -> list[float]:
    """Kill the worker of a process; how long each of its steps waited to run again."""
    killed_at, pids = crew.kill_worker_of(pid)
    return [_again(stage, line) - killed_at for line in _cut(stage, pids)]


def _again(stage: Stage, cut: Line) -> float:
    """When a step that was cut off ran again."""
    return _started(stage, cut.run_id, cut.step_id, cut.attempt + 1).at


def _busy(stage: Stage, crew: Crew) -> int | None:
    """A process that does a step."""
    return next((line.pid for line in _cut(stage, crew.children())), None)


def _cut(stage: Stage, pids: Collection[int]) -> list[Line]:
    """The starts in these processes that have no finish."""
    finished = {(line.run_id, line.step_id, line.attempt) for line in stage.journal.of("finish")}
    starts = (line for line in stage.journal.of("start") if line.pid in pids)
    return [line for line in starts if (line.run_id, line.step_id, line.attempt) not in finished]


def _started(stage: Stage, run_id: str, step_id: str, attempt: int) -> Line:
    """The start of an attempt of a step."""

    def found() -> Line | None:
        lines = stage.journal.of("start", run_id)
        return next((line for line in lines if (line.step_id, line.attempt) == (step_id, attempt)), None)

    line: Line = until(found, f"attempt {attempt} of step {step_id} of run {run_id}", PATIENCE_S)
    return line
