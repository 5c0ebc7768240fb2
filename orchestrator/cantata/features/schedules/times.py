"""Times of schedules, and the requests of their runs: pure functions of a schedule and a time. All times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast

from cronsim import CronSim

from cantata.flows.expressions.templates import fill
from cantata.flows.schedules import Schedule
from cantata.values import JsonValue

MAX_TIMES = 1000  # looked at in one call: after a long outage the next call goes on
MAX_FIRED = 50  # runs that one call starts


class DueTimes(NamedTuple):
    """Times of a schedule that have come."""

    fires: list[int]
    """Times to run, oldest first."""
    missed: int
    """Number of times that are too late to run."""
    next_ms: int | None
    """The first time behind them; None if there is none."""


def times(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """Yield the times after a time, in order."""
    if schedule.every is not None:
        period = round(schedule.every * 1000)
        while True:
            after_ms = (after_ms // period + 1) * period
            yield after_ms
    elif schedule.cron is not None:
        # The library looks at the wall clock alone, so that of two equal times of a night it may give the first when asked behind it.
        for moment in CronSim(schedule.cron, datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(schedule.zone)):
            at_ms = round(moment.timestamp() * 1000)
            if at_ms > after_ms:
                yield at_ms
                after_ms = at_ms
    elif schedule.at_ms is not None and schedule.at_ms > after_ms:
        yield schedule.at_ms


def first_time(schedule: Schedule, now_ms: int) -> int | None:
    """Return the first time of a schedule that begins now. One date may have passed by no more than its window."""
    return next(times(schedule, now_ms - round(schedule.catch_up * 1000) if schedule.at else now_ms), None)


def delay_ms(schedule: Schedule, scope: str, at_ms: int) -> int:
    """Return the jitter of a time of the schedule with this scoped name; the same for the same time."""
    draw = int.from_bytes(sha256(f"{scope}\n{at_ms}".encode()).digest()[:8])
    return int(schedule.jitter * 1000 * draw / 2**64)


def due_times(schedule: Schedule, scope: str, next_ms: int, now_ms: int, grace_ms: int = 0) -> DueTimes:
    """Return the times from `next_ms` on that have come by now; `grace_ms` prolongs the window in which they are run."""
    window_ms, fires, missed = round(schedule.catch_up * 1000) + grace_ms, list[int](), 0
    following, at_ms = times(schedule, next_ms), cast("int | None", next_ms)
    for _ in range(MAX_TIMES):
        late_ms = -1 if at_ms is None else now_ms - at_ms - delay_ms(schedule, scope, at_ms)
        if at_ms is None or late_ms < 0 or len(fires) == MAX_FIRED:
            break
        if late_ms > window_ms:
            missed += 1
        else:
            fires.append(at_ms)
        at_ms = next(following, None)
    return DueTimes(fires, missed, at_ms)


def placeholders(schedule: Schedule, name: str, at_ms: int) -> dict[str, str]:
    """Return the values of the placeholders in its texts, in its time zone."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(schedule.zone)
    return {
        "schedule": name,
        "scheduled_at": at.isoformat(timespec="seconds"),
        "timestamp": str(at_ms // 1000),
        "date": at.strftime("%Y-%m-%d"),
        "time": at.strftime("%H:%M"),
        "year": at.strftime("%Y"),
        "month": at.strftime("%m"),
        "day": at.strftime("%d"),
        "hour": at.strftime("%H"),
        "minute": at.strftime("%M"),
        "weekday": at.strftime("%A").lower(),
    }


def request_at(schedule: Schedule, name: str, request: Mapping[str, Any], at_ms: int) -> dict[str, JsonValue]:
    """Return the request of the run for a time: the schedule's request, with the placeholders filled in its text or input."""
    values = placeholders(schedule, name, at_ms)
    if schedule.turn:
        return {**request, "text": fill(request["text"], values)}
    if "initial_input" in request:
        return {**request, "initial_input": _filled(request["initial_input"], values)}
    if schedule.workflow and "input" in request["nodes"][0]:
        return {**request, "nodes": [{**request["nodes"][0], "input": _filled(request["nodes"][0]["input"], values)}]}
    return dict(request)


def _filled(value: JsonValue, values: Mapping[str, str]) -> JsonValue:
    """Return a JSON value whose texts have their placeholders filled; keys stay as they are."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return {key: _filled(each, values) for key, each in value.items()} if isinstance(value, dict) else value
