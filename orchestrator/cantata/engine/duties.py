"""The duties of a sweep: what each process that sweeps does, one duty after the other, for the shards that it sweeps.

An error of a duty costs that duty, and one of an item within it that item: `isolation` has the rules. The next sweep tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from cantata.engine import permit_wakeups
from cantata.engine.dispatch.celery_app import App
from cantata.engine.dispatch.queues import heads_sent_at
from cantata.engine.fleet import holds, load, registry
from cantata.engine.fleet.holds import PausedQueue
from cantata.engine.fleet.registry import Worker
from cantata.engine.isolation import Isolation, Item, are_outages, log_once
from cantata.engine.limits.limiter import Limiter
from cantata.engine.publisher import TASKS
from cantata.errors import UnknownRunError
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Overdue, Ready, Swept
from cantata.ledger.redis import clock, outages
from cantata.ledger.redis.keys import shard_of
from cantata.ledger.runs import run_ends
from cantata.operation import fault_points, metrics, traces
from cantata.values import JsonValue

log = structlog.get_logger(__name__)

TASK_CHECK = "task.check"  # the Celery task that looks for results of the user's tasks
CHECKED_AT_ONCE = 500  # tasks, in one message
CLOCK_SPREAD_S = 2.0  # between marking a step as sent and sending it, clock differences between machines included
MAX_FAULT_CHARS = 300
SENT_AT_ONCE = 500  # lost messages: few enough to send right after checking that each is still needed


@dataclass(slots=True)
class Sweep:
    """One sweep of some shards: what its duties share."""

    app: App
    ledger: Ledger
    shards: Sequence[int]
    since: float
    """When it began, by Redis's clock."""
    found: Sequence[Swept]
    """What the ledger's sweep of each shard found."""
    isolation: Isolation


Duty = tuple[str, Callable[[Sweep], None]]
"""Its name, which is also the label of its errors in `cantata_sweep_errors_total`, and its function."""


def sweep_once(app: App, ledger: Ledger, shards: Sequence[int], duties: Sequence[Duty]) -> bool:
    """Sweep some shards and do all duties, in their order; return whether all of them were done, for whichever items could be.

    Raises UnavailableError if the ledger is away: then there is nothing to do.
    """
    since = clock.now()
    sweep = Sweep(app, ledger, shards, since, ledger.leases.sweep_all(shards), Isolation(ledger))
    faults = [f"shards: {swept.fault}" for swept in sweep.found if swept.fault]
    for name, do in duties:
        try:
            do(sweep)
        except Exception as error:  # noqa: BLE001  # the edge of a duty: the others are done whatever it met
            faults.append(f"{name}: {type(error).__name__}: {error}")
            metrics.record_sweep_error(name)
            if are_outages(error):
                outages.warn(log, "sweep_failed", error, duty=name)
            else:
                log_once("sweep_crashed", error, duty=name)
    if faults:
        load.record_sweep_fault(ledger.redis, faults[0][:MAX_FAULT_CHARS])
    return not faults


def _report(sweep: Sweep) -> None:
    """Log what the ledger's sweep found, and what failed in it."""
    for swept in sweep.found:
        fault_points.at("swept")
        if swept.fired:
            fault_points.at("timer-fired")
        if swept.lost:
            log.info("leases_lost", count=swept.lost)
        if swept.fault:
            metrics.record_sweep_error("shards")
            log_once("shard_sweep_failed", swept.fault)
        for fault in swept.faults:
            sweep.isolation.failed(Item(fault.duty, fault.item, fault.shard), fault.error, tries=fault.tries)


def _send(sweep: Sweep) -> None:
    """Send the steps that are due, before the broker is asked about messages that may be lost."""
    ready = [each for swept in sweep.found for each in swept.sends]
    sweep.isolation.together(ready, lambda some: sweep.app.send_ready(some, sent_at=sweep.since), _item_of_ready)


def _item_of_ready(ready: tuple[str, Ready]) -> Item:
    return Item("sends", f"{ready[0]}|{ready[1].step_id}", shard_of(ready[0]))


def _check_tasks(sweep: Sweep) -> None:
    """Have a worker look for the results of dispatched steps, and revoke tasks; without a worker, the next one looks, and tasks expire."""
    tasks, revoked = (
        [name for swept in sweep.found for name in swept.tasks],
        [name for swept in sweep.found for name in swept.revoked],
    )
    if revoked or (
        tasks and TASKS in registry.slots(sweep.ledger.redis) and TASKS not in holds.paused(sweep.ledger.redis)
    ):  # a revocation is told once: it waits in the queue
        for start in range(0, max(len(tasks), len(revoked)), CHECKED_AT_ONCE):
            part = slice(start, start + CHECKED_AT_ONCE)
            try:
                sweep.app.send_task(TASK_CHECK, args=(tasks[part], revoked[part]), queue=sweep.app.broker_queue(TASKS))
            except BaseException:
                sweep.ledger.steps.keep_revoked(revoked[start:])  # the next sweep has them again
                raise


def _sweep_permits(sweep: Sweep) -> None:
    """Send the steps whose rate limits now have room. Of several sweepers, that of the first shard does it always."""
    waiting, left = (
        [ticket for swept in sweep.found for ticket in swept.waiting],
        [ticket for swept in sweep.found for ticket in swept.left],
    )
    if 0 in sweep.shards or waiting or left:
        woken = permit_wakeups.sweep(sweep.ledger, Limiter(sweep.ledger), waiting, left, sweep.isolation)
        sweep.isolation.together(woken, lambda some: sweep.app.send_ready(some, sent_at=sweep.since), _item_of_ready)


def _log_ends(sweep: Sweep) -> None:
    """Log the ends of runs that the sweep ended: no step of them will."""
    for run_id in (run_id for swept in sweep.found for run_id in swept.ended):
        with sweep.isolation.of(Item("ends", run_id)), suppress(UnknownRunError):  # it may be gone by now
            log.info("run_ended", run=run_id, status=sweep.ledger.runs.status(run_id))
            run_ends.record(sweep.ledger, run_id, traces.active())


def _send_lost(sweep: Sweep) -> None:
    """Send the steps whose message is lost; those whose message is still in its queue are left alone."""
    overdue = [step for swept in sweep.found for step in swept.overdue]
    if not overdue:
        return
    heads = heads_sent_at(sweep.app, {(step.queue, step.priority) for step in overdue})
    lost = sorted(
        (step for step in overdue if is_lost(step, heads[step.queue, step.priority])), key=lambda step: step.sent_at
    )
    for start in range(0, len(lost), SENT_AT_ONCE):
        sweep.isolation.together(
            lost[start : start + SENT_AT_ONCE],
            lambda some: sweep.app.send_ready(sweep.ledger.steps.still_waiting(some)),
            lambda step: Item("lost", f"{step.run_id}|{step.step_id}", shard_of(step.run_id)),
        )


def is_lost(step: Overdue, head_sent_at: float | None) -> bool:
    """Return whether the message of an overdue step is lost, by the time the head of its queue was sent; None: the queue is empty.

    A queue is first in, first out: if the message at its head was sent after ours, ours is gone (or a busy worker has it, and then a
    second one does no harm).
    """
    return head_sent_at is None or head_sent_at > step.sent_at + CLOCK_SPREAD_S


def _note_unserved(sweep: Sweep) -> None:
    """Append an event about each queue that is paused or has no workers to the runs that need it, once for all overdue steps of a run."""
    overdue = [step for swept in sweep.found for step in swept.overdue if step.is_first_look]
    by_queue = {(step.run_id, step.queue): step.step_id for step in overdue}
    fleet = registry.workers(sweep.ledger.redis) if by_queue else []
    paused = holds.paused(sweep.ledger.redis) if by_queue else {}
    served = {queue for worker in fleet for queue in worker.serving}
    notes: list[tuple[str, str, dict[str, JsonValue]]] = [
        (run_id, step_id, {"queue": queue, "message": _unserved(queue, paused, fleet)})
        for (run_id, queue), step_id in by_queue.items()
        if queue in paused or queue not in served
    ]
    sweep.isolation.together(
        notes,
        lambda some: sweep.ledger.runs.append_events("unserved", some),
        lambda note: Item("unserved", f"{note[0]}|{note[1]}"),
    )


def _unserved(queue: str, paused: Mapping[str, PausedQueue], fleet: Sequence[Worker]) -> str:
    return registry.paused_message(paused[queue]) if queue in paused else registry.unserved(queue, fleet)


FIRST: Sequence[Duty] = (("shards", _report), ("sends", _send))
"""What is known to be due, and waits for a person least, before the duties of features."""
LAST: Sequence[Duty] = (
    ("tasks", _check_tasks),
    ("permits", _sweep_permits),
    ("ends", _log_ends),
    ("lost", _send_lost),
    ("unserved", _note_unserved),
)
"""The duties after them."""
