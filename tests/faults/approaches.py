"""Ways to bring a process to a point where it is struck: what to submit, from where, and what to do meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from cantata.client.runs import Run
from cantata.ledger.runs.results import is_over
from cantata.operation.fault_points import FREEZE_S, VARIABLE, struck_file
from tests.faults.processes import family, is_frozen, pid_of
from tests.faults.shapes import ANYWHERE, SHAPES, Shape
from tests.faults.stage import LINGER_S, Stage
from tests.waiting import until

PATIENCE_S = 90.0  # both workers of a sort may be waiting to be started again
AFTER_S = 0.3
LINGERS_SINCE_S = 0.4  # what has run for so long is the step that lingers

Approach = Callable[[Stage, Shape, str, str], tuple[Run, bool]]
"""(stage, shape, tag, `label:n:kind`) → the run, which is over, and whether the point was reached."""


def plainly(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Submit a run: the point lies on its way."""
    return _submit(stage, shape, tag, strike)


def lingering(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Submit a run with a step that is longer than a renewal."""
    return _submit(stage, shape, tag, strike, meanwhile=lambda _: None)


def past_a_kill(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Kill the process of the step that lingers, so that its lease is lost."""
    return _submit(stage, shape, tag, strike, meanwhile=lambda run: _kill(stage, _busy(stage.together(run))))


def past_a_stop(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Tell the worker of the step that lingers to stop, so that it hands the step back."""
    return _submit(
        stage,
        shape,
        tag,
        strike,
        linger_s=4.0,
        meanwhile=lambda run: os.kill(stage.worker_of(_busy(stage.together(run))), signal.SIGTERM),
    )


def unserved(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Submit to a queue without a worker, which comes when that was noted."""
    _arm(stage, strike)
    run = stage.submit(shape, tag)
    was_reached = _await_strike(stage, run, strike)
    with stage.extra_worker(shape.name):
        run.wait(PATIENCE_S)
    return run, was_reached


def once_known(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Submit runs until one comes to the point: workers must have learned first that the code of its workflow is quick."""
    _arm(stage, strike)
    give_up = time.monotonic() + PATIENCE_S
    for number in count():
        run = stage.submit(shape, f"{tag}.{number}")
        was_reached = _await_strike(stage, run, strike, after_s=0.0)
        run.wait(PATIENCE_S)
        if was_reached or time.monotonic() > give_up:
            stage.fault.unlink(missing_ok=True)
            return run, was_reached
    raise AssertionError


def posting(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Submit a run, and wait until its end is posted: the point lies between the two."""
    _arm(stage, strike)
    run = stage.submit(shape, tag)
    was_reached = _await_strike(stage, run, strike, after_s=PATIENCE_S)
    until(
        lambda: run.run_id in {each.content["data"]["run_id"] for each in stage.hook.messages},
        f"the message of {run}",
        PATIENCE_S,
    )
    return run, was_reached


def elsewhere(stage: Stage, shape: Shape, tag: str, strike: str) -> tuple[Run, bool]:
    """Submit from a process that is struck; then ask for the same run again, as its user would."""
    words = [stage.client.redis_url, shape.name, tag, str(stage.journal.path)]
    struck = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.submitter", *words], env={**os.environ, VARIABLE: strike}
    )
    stage.clients.append(struck)
    until(lambda: struck.poll() is not None or is_frozen(struck.pid), "the strike", PATIENCE_S)
    ended = {"kill": -signal.SIGKILL, "freeze": None, "drop": 0}[strike.rpartition(":")[2]]
    run = stage.submit(shape, tag)
    run.wait(PATIENCE_S)
    return run, struck.returncode == ended


def _submit(
    stage: Stage,
    shape: Shape,
    tag: str,
    strike: str,
    meanwhile: Callable[[Run], None] | None = None,
    linger_s: float = LINGER_S,
) -> tuple[Run, bool]:
    _arm(stage, strike)
    run = stage.submit(shape, tag, linger_s=linger_s if meanwhile else 0.0)
    if meanwhile:
        meanwhile(run)
    was_reached = _await_strike(stage, run, strike)
    run.wait(PATIENCE_S)
    stage.fault.unlink(missing_ok=True)
    return run, was_reached


def struck(stage: Stage) -> int:
    """The process that was struck at the point that was armed last, once it has said so."""
    file = struck_file(stage.fault)
    return int(file.read_text() or 0) if file.exists() else 0


def _arm(stage: Stage, strike: str) -> None:
    struck_file(stage.fault).unlink(missing_ok=True)
    draft = stage.fault.with_suffix(".new")
    draft.write_text(strike)
    draft.replace(stage.fault)


def _await_strike(stage: Stage, run: Run, strike: str, after_s: float | None = None) -> bool:
    """Wait until the point is reached or the run is over; who is frozen there is written down."""
    until(lambda: not stage.fault.exists() or is_over(run.status()), f"{strike} or the end of {run}", PATIENCE_S)
    with suppress(TimeoutError):  # the last points come after the end
        until(lambda: not stage.fault.exists(), strike, AFTER_S if after_s is None else after_s)
    was_reached = not stage.fault.exists()
    if was_reached and strike.endswith(":freeze"):
        stage.note_frozen(until(lambda: struck(stage), f"who stands still at {strike}", PATIENCE_S), FREEZE_S)
    return was_reached


def _kill(stage: Stage, pid: int) -> None:
    for each in family(pid):
        stage.journal.write("killed", pid=each)
    os.kill(pid, signal.SIGKILL)


def _busy(runs: Sequence[Run]) -> int:
    """The process of the step that lingers."""
    since: dict[tuple[str, str, int], float] = {}

    def lingers() -> int | None:
        for run in runs:
            for step in run.record().steps.values():
                if step.state == "running" and not step.spec.decides:
                    began = since.setdefault((run.run_id, step.step_id, step.attempt), time.monotonic())
                    if time.monotonic() - began > LINGERS_SINCE_S:
                        return pid_of(step.owner)
        return None

    pid: int = until(lingers, f"the step of {runs[-1]} that lingers", PATIENCE_S)
    return pid


APPROACHES: dict[str, Approach] = {
    "accepted": elsewhere,
    "accept-replied": elsewhere,
    "fork-replied": elsewhere,
    "lease-renewed": lingering,
    "swept": past_a_kill,
    "step-released": past_a_stop,
    "event-appended": unserved,
    "advance-executed": once_known,
    "outbox-replied": posting,
}
"""The ways to points that no plain run comes to."""


def approach(label: str) -> Approach:
    """The way to a point."""
    return APPROACHES.get(label, plainly)


def shapes_to(label: str) -> list[Shape]:
    """The shapes whose runs may come to a point."""
    only = {
        "event-appended": "unserved",
        "fork-replied": "fork",
        "task-published": "task",
        "advance-executed": "code",
        "schedule-fired": "scheduled",
        "outbox-replied": "posted",
    }.get(label)
    return [SHAPES[only]] if only else ANYWHERE
