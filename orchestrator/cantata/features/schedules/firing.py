"""Firing of schedules: the runs of the times that have come."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from pydantic import ValidationError

from cantata.engine.isolation import Isolation, Item
from cantata.engine.publisher import Publisher
from cantata.engine.start import definitions_from
from cantata.errors import ConfigError, StoredDataError, UnavailableError, UnknownRunError
from cantata.features.schedules.schedule_store import (
    FOREVER,
    Fired,
    Firing,
    ScheduleStore,
    names_in,
    run_id_at,
    shard_for,
)
from cantata.features.schedules.times import delay_ms, due_times, placeholders, request_at
from cantata.features.webhooks.webhooks import raise_alerts
from cantata.flows.definitions import Quota
from cantata.flows.schedules import Schedule
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import Quotas
from cantata.ledger.records import DueSchedule
from cantata.operation import fault_points, metrics
from cantata.values import ErrorInfo, stored

if TYPE_CHECKING:
    from cantata.engine.duties import Duty, Sweep

log = structlog.get_logger(__name__)

FIRED_AT_ONCE = 100  # schedules in one round trip
FIRING_S = 1.0  # in one sweep, which also recovers lost work; the next one goes on
MOST_STARTED = 60  # runs of one look, with some 30 commands of Redis for each
REFUSED_RETRY_MS = 5000  # until a schedule whose run was refused by a quota is looked at again
UNREADABLE_RETRY_MS = 60_000
STARTED = ("new", "accepted")  # outcomes of a time that got its run; the latter waits for its turn in a session


def fire_due(
    publisher: Publisher, ledger: Ledger, due: Sequence[DueSchedule], isolation: Isolation | None = None
) -> None:
    """Start the runs of all times of these schedules that have come, and send their first messages.

    Whoever calls it with the same schedules at the same time, each time is run once. A process that dies in it leaves times that the next
    call finds, or accepted runs whose messages a sweep sends. A schedule that fails costs no other.
    """
    quotas, ends_at, isolation = ledger.quotas, time.monotonic() + FIRING_S, isolation or Isolation(ledger)
    for start in range(0, len(due), FIRED_AT_ONCE):
        if start and time.monotonic() > ends_at:
            break
        looks: list[_Look] = []
        for each in due[start : start + FIRED_AT_ONCE]:
            with isolation.of(_item_of(each)):
                looks.append(_look(ledger, quotas, each))
        _fire(publisher, ledger, looks, isolation)


def _sweep(sweep: Sweep) -> None:
    fire_due(
        sweep.app, sweep.ledger, [schedule for swept in sweep.found for schedule in swept.schedules], sweep.isolation
    )


DUTY: Duty = ("schedules", _sweep)


def _item_of(due: DueSchedule) -> Item:
    return Item("schedules", due.scope, due.shard)


def _fire(publisher: Publisher, ledger: Ledger, looks: Sequence[_Look], isolation: Isolation) -> None:
    fired: list[tuple[_Look, Fired]] = []
    for look, result in zip(looks, ScheduleStore(ledger).fire([look.firing for look in looks]), strict=True):
        if isinstance(result, Exception):
            isolation.failed(_item_of(look.due), result)
        else:
            fired.append((look, result))
    fault_points.at("schedule-fired")
    runs = [run for look, result in fired for run in started(look.firing, result)]
    if runs:
        publisher.announce_runs(runs)
    for look, result in fired:
        with isolation.of(_item_of(look.due)):
            _record(ledger, look, result, isolation)


class _Look(NamedTuple):
    """A schedule that is due, and what is done about it; without its spec if this process cannot read it."""

    due: DueSchedule
    spec: Schedule | None
    firing: Firing


def item_of(
    spec: Schedule,
    scope: str,
    request: Mapping[str, Any],
    labels: Mapping[str, str],
    at_ms: int,
    *,
    run_id: str | None = None,
) -> dict[str, str]:
    """Return a time with its run, as `fire.lua` has them."""
    name = names_in(scope)[1]
    own = {**labels, "schedule": name, "scheduled_at": placeholders(spec, name, at_ms)["scheduled_at"]}
    run = run_id or run_id_at(shard_for(scope, spec), scope, at_ms)
    return {
        "at": str(at_ms),
        "run": run,
        "request": to_json(request_at(spec, name, request, at_ms)),
        "labels": to_json(dict(own)),
    }


def started(firing: Firing, result: Fired) -> Iterable[tuple[str, int]]:
    """Yield the new runs of a firing whose first steps are to be sent, with their priorities."""
    for item, (outcome, priority) in zip(firing.items, result.outcomes, strict=False):
        if outcome == "new":
            yield item["run"], int(priority)


def _look(ledger: Ledger, quotas: Quotas, due: DueSchedule) -> _Look:
    try:
        spec = stored(Schedule, due.spec, ignores_unknown=True)
    except (
        ValidationError,
        StoredDataError,
    ) as error:  # such as a time zone that the system of this process does not have
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        message = f"the schedule cannot be read: {why}"
        return _Look(due, None, _later(due, "skip", due.next_at, 0, UNREADABLE_RETRY_MS, message))
    return _Look(due, spec, _firing(ledger, quotas, due, spec))


def _later(due: DueSchedule, overlap: str, next_at: str, missed: int, retry_ms: int, error: str) -> Firing:
    """Return a firing that starts nothing, and has the schedule looked at again."""
    retry_at = str(due.now_ms - due.skipped_ms + retry_ms)
    return Firing(
        due.shard,
        due.scope,
        due.mark,
        overlap,
        [],
        read=due.next_at,
        next_at=next_at,
        retry_at=retry_at,
        missed=missed,
        error=error,
    )


def _firing(ledger: Ledger, quotas: Quotas, due: DueSchedule, spec: Schedule) -> Firing:
    """Return the firing of a schedule now; a previous run that gives way to it is cancelled."""
    request, labels = json.loads(due.request), json.loads(due.labels)
    times = due_times(spec, due.scope, int(due.next_at), due.now_ms, due.grace_ms) if due.next_at else None
    fires, skipped = times.fires if times else [], 0
    if spec.overlap == "cancel_previous" and fires:
        fires, skipped = fires[-1:], len(fires) - 1
    next_ms = times.next_ms if times else None
    room = _room(quotas, spec.tenant, due) if fires or due.pending else 0
    if isinstance(room, str):
        kept_ms = times.fires[0] if times and times.fires else next_ms  # until it is too late for it
        return _later(due, spec.overlap, str(kept_ms or ""), times.missed if times else 0, REFUSED_RETRY_MS, room)
    if spec.overlap == "cancel_previous" and fires and due.open_run:
        error = ErrorInfo(
            code="cancelled",
            message=f"the next run of schedule {names_in(due.scope)[1]!r} was due (overlap: cancel_previous)",
        )
        with suppress(UnknownRunError):
            ledger.runs.cancel(due.open_run, error=error)
    pending = due.pending
    if spec.overlap == "allow":  # else one run is started at most
        pending = pending[:room]
        if len(fires) > room - len(pending):
            fires, next_ms = fires[: room - len(pending)], fires[room - len(pending)]
    items = []
    for entry in pending:
        waiting = json.loads(entry)
        own = {**labels, **json.loads(waiting.get("labels", "{}"))}
        items.append({**item_of(spec, due.scope, request, own, int(waiting["at"])), "pending": entry})
    items += [item_of(spec, due.scope, request, labels, at_ms) for at_ms in fires]
    look_at = FOREVER if next_ms is None else str(next_ms + delay_ms(spec, due.scope, next_ms) - due.skipped_ms)
    return Firing(
        due.shard,
        due.scope,
        due.mark,
        spec.overlap,
        items,
        read=due.next_at,
        next_at=str(next_ms or ""),
        look_at=look_at,
        missed=times.missed if times else 0,
        skipped=skipped,
    )


def _room(quotas: Quotas, tenant: str, due: DueSchedule) -> int | str:
    """Return how many runs of a schedule its tenant's quota allows now, from 1; or why it allows none."""
    size = len(due.request)
    try:
        room = quotas.check(tenant, stored(Quota, due.quota, ignores_unknown=True), size)
    except (ConfigError, UnavailableError) as error:
        return str(error)
    allowed = (room.runs, None if room.bytes is None else room.bytes // max(1, size))
    return min([MOST_STARTED, *(each for each in allowed if each is not None)])


def _record(ledger: Ledger, look: _Look, result: Fired, isolation: Isolation) -> None:
    """Log and count what became of the times of a schedule, and raise the alerts for times without a run."""
    due, spec, firing = look
    if not result.now_ms:  # another process was first
        return
    outcomes = Counter(outcome for outcome, _ in result.outcomes)
    counts = {
        "fired": outcomes["new"] + outcomes["accepted"], "queued": outcomes["queued"],
        "skipped": firing.skipped + outcomes["skipped"], "missed": firing.missed,
    }  # fmt: skip
    for outcome, count in counts.items():
        metrics.record_schedule_times(outcome, count)
    for item, (outcome, _) in zip(firing.items, result.outcomes, strict=True):
        if spec and outcome in STARTED and "pending" not in item:
            due_ms = int(item["at"]) + delay_ms(spec, due.scope, int(item["at"]))
            metrics.record_schedule_lateness((result.now_ms + due.skipped_ms - due_ms) / 1000)
    if firing.missed or firing.error:
        log.warning("schedule_times_missed", schedule=due.scope, missed=firing.missed, error=firing.error)
        with isolation.of(Item("alerts", due.scope)):
            _raise_alerts(ledger, due, firing)


def _raise_alerts(ledger: Ledger, due: DueSchedule, firing: Firing) -> None:
    """Raise the alerts `schedule_missed` of the configuration that a schedule runs with."""
    tenant, name = names_in(due.scope)
    known = ScheduleStore(ledger).read(tenant, name)
    if known is None:
        return
    text = ledger.runs.definitions_in(due.shard, known.digest, f"schedule {name!r}")
    raise_alerts(
        ledger,
        definitions_from(text),
        text,
        "schedule_missed",
        key=f"schedule {due.scope} {due.next_at}",
        tenant=tenant,
        message=f"schedule {name!r} did not start a run at its time: {firing.error or f'{firing.missed} times are missed'}",
        data={"schedule": name, "missed": firing.missed, "error": firing.error or ""},
        applies=lambda alert: alert.name in (None, name),
    )
