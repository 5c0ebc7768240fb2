"""Which run a Celery task belongs to, by the arguments that it shows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cantata.models.values import JsonValue

MOST_LISTED = 1000  # tasks of one run that are told: the newest

_SHOWN = re.compile(r"([0-9a-f]{16,40}):(.+)", re.DOTALL)
_MORE = "…"


class Task(Protocol):
    """What Flower knows of a task."""

    uuid: str
    name: str | None
    state: str
    args: object
    received: float | None
    runtime: float | None
    worker: object


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task is in a run."""

    run_id: str
    steps: tuple[str, ...]
    """The first of those in its message."""


def place_of(task: Task) -> Place | None:
    """The run and the steps of a task; None if it is no task of a run. Its message shows `run_id:step,step…`."""
    found = _SHOWN.fullmatch(task.args) if isinstance(task.args, str) else None
    return found and Place(found[1], tuple(found[2].removesuffix(_MORE).split(",")))


def tasks_of(run_id: str, tasks: Iterable[Task]) -> list[JsonValue]:
    """The tasks of a run, the newest first."""
    own = [(task, place) for task in tasks if (place := _place_in(run_id, task))]
    own.sort(key=lambda pair: pair[0].received or 0.0, reverse=True)
    return [_told(task, place) for task, place in own[:MOST_LISTED]]


def _place_in(run_id: str, task: Task) -> Place | None:
    if not isinstance(task.args, str) or not task.args.startswith(f"{run_id}:"):  # quicker than the pattern, for 100,000 tasks
        return None
    return place_of(task)


def _told(task: Task, place: Place) -> JsonValue:
    return {
        "uuid": task.uuid,
        "name": task.name,
        "state": task.state,
        "steps": list(place.steps),
        "worker": getattr(task.worker, "hostname", None),
        "received": task.received,
        "runtime": task.runtime,
    }
