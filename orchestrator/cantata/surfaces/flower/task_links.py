"""The run and steps of a Celery task, parsed from its displayed arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cantata.values import JsonValue

MAX_LISTED = 1000  # of the newest tasks of one run

_SHOWN = re.compile(r"([0-9a-f]{16,40}):[^(]*\((.+)\)", re.DOTALL)  # as planning.canvas writes it
_MORE = "…"


class Task(Protocol):
    """A task in Flower."""

    uuid: str
    name: str | None
    state: str
    args: object
    received: float | None
    runtime: float | None
    worker: object


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """The run and steps of a task."""

    run_id: str
    steps: tuple[str, ...]
    """The first steps in its message."""


def task_target(task: Task) -> TaskTarget | None:
    """Return the run and the steps of a task; None if it belongs to no run. Its arguments are displayed as `run_id:tool(step,step…)`."""
    found = _SHOWN.fullmatch(task.args) if isinstance(task.args, str) else None
    return found and TaskTarget(found[1], tuple(found[2].removesuffix(_MORE).split(",")))


def tasks_of(run_id: str, tasks: Iterable[Task]) -> list[JsonValue]:
    """Return the tasks of a run, newest first."""
    own = [(task, target) for task in tasks if (target := _target_in(run_id, task))]
    own.sort(key=lambda pair: pair[0].received or 0.0, reverse=True)
    return [_to_json(task, target) for task, target in own[:MAX_LISTED]]


def _target_in(run_id: str, task: Task) -> TaskTarget | None:
    if not isinstance(task.args, str) or not task.args.startswith(
        f"{run_id}:"
    ):  # faster than the pattern, with 100,000 tasks
        return None
    return task_target(task)


def _to_json(task: Task, target: TaskTarget) -> JsonValue:
    return {
        "uuid": task.uuid,
        "name": task.name,
        "state": task.state,
        "steps": list(target.steps),
        "worker": getattr(task.worker, "hostname", None),
        "received": task.received,
        "runtime": task.runtime,
    }
