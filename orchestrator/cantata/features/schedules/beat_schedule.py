"""The `beat_schedule` of a Celery application, as tools and schedules of a configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from celery import Celery
from celery.schedules import crontab, schedule
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cantata.engine.dispatch import user_app
from cantata.errors import Fault
from cantata.flows.schedules import Schedule
from cantata.values import MAX_NAME, JsonValue

_FIELDS = ("_orig_minute", "_orig_hour", "_orig_day_of_month", "_orig_month_of_year", "_orig_day_of_week")
_CHECK = TypeAdapter(Schedule)


class Imported(NamedTuple):
    """The sections of a configuration, and the faults of the entries that are left out."""

    tools: dict[str, JsonValue]
    schedules: dict[str, JsonValue]
    faults: list[Fault]


def read(name: str) -> Imported:
    """Return the beat schedule of the application that a name such as `shop.celery:app` stands for. Raises ConfigError."""
    app = user_app.find(name)
    user_app.import_tasks(app)
    found = Imported({}, {}, [])
    for key, entry in dict(app.conf.beat_schedule or {}).items():
        try:
            tool, declared = _tool(app, entry), _schedule(app, entry)
            _CHECK.validate_python(declared)
        except ValidationError as error:
            found.faults.append(Fault(error.errors()[0]["msg"].removeprefix("Value error, "), str(key)))
        except (ValueError, PydanticSerializationError) as error:
            found.faults.append(Fault(str(error), str(key)))
        else:
            found.tools[_tool_name(entry)] = tool
            found.schedules[
                _unused(re.sub(r"[^A-Za-z0-9._-]+", "-", str(key))[:MAX_NAME] or "entry", found.schedules)
            ] = declared
    return found


def _tool_name(entry: Mapping[str, Any]) -> str:
    queue = (entry.get("options") or {}).get("queue")
    return str(entry["task"]) if queue is None else f"{entry['task']}@{queue}"


def _tool(app: Celery, entry: Mapping[str, Any]) -> JsonValue:
    options = dict(entry.get("options") or {})
    queue = options.pop("queue", None)
    if options:
        raise ValueError(
            f"the options {', '.join(sorted(options))} have no counterpart; set them on the task, or leave them out"
        )
    return {"task": str(entry["task"]), **({"queue": str(queue)} if queue else {})}


def _schedule(app: Celery, entry: Mapping[str, Any]) -> dict[str, JsonValue]:
    node: dict[str, JsonValue] = {"node_id": "task", "kind": "tool", "name": _tool_name(entry)}
    if given := _arguments(app, entry):
        node["input"] = given
    return {**_timing(app, entry["schedule"]), "chain": {"nodes": [node], "entry_node": "task"}, "overlap": "allow"}


def _arguments(app: Celery, entry: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the keyword arguments of an entry; the task's signature names its positional ones."""
    args, kwargs = tuple(entry.get("args") or ()), dict(entry.get("kwargs") or {})
    if args:
        task = app.tasks.get(entry["task"])
        if task is None:
            raise ValueError(
                f"task {entry['task']!r} cannot be imported, so its positional arguments have no names; write them as 'kwargs'"
            )
        signature = inspect.signature(task.run)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f"the arguments do not fit the task {entry['task']!r}: {error}") from None
        named = dict(zip(signature.parameters.values(), args, strict=False))
        if len(named) < len(args) or any(each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for each in named):
            raise ValueError(
                f"task {entry['task']!r} has arguments without a name of their own; a tool gives keyword arguments only"
            )
        kwargs |= {each.name: value for each, value in named.items()}
    found: dict[str, JsonValue] = to_jsonable_python(kwargs)
    return found


def _timing(app: Celery, when: object) -> dict[str, JsonValue]:
    if isinstance(when, crontab):
        minute, hour, day, month, weekday = (_field(getattr(when, name)) for name in _FIELDS)
        if not day.startswith("*") and not weekday.startswith("*"):
            raise ValueError(
                "Celery runs it where day_of_month and day_of_week both match, cron where either does; give only one of both fields"
            )
        zone = str(app.conf.timezone or "UTC")
        return {"cron": f"{minute} {hour} {day} {month} {weekday}", **({"timezone": zone} if zone != "UTC" else {})}
    if type(when) is schedule:
        when = when.run_every  # type: ignore[attr-defined]  # missing in the stubs
    if isinstance(when, timedelta):
        when = when.total_seconds()
    if isinstance(when, int | float):
        return {"every": when}
    raise ValueError(
        f"a schedule of type {type(when).__name__!r} cannot be imported, only crontab, timedelta and seconds; write a 'cron' for it"
    )


def _field(given: object) -> str:
    """Return a field of a crontab as cron writes it: names have three letters, and lists commas."""
    text = (
        given
        if isinstance(given, str)
        else ",".join(map(str, given))
        if isinstance(given, list | tuple | set | range)
        else str(given)
    )
    return re.sub(r"([a-z]{3})[a-z]*", r"\1", text.replace(" ", "").lower())


def _unused(name: str, taken: Mapping[str, object]) -> str:
    return next(
        each
        for number in range(1, len(taken) + 2)
        if (each := name if number == 1 else f"{name[:90]}-{number}") not in taken
    )
