"""Checks of workers, queues and runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.health.facts import Fleet, Unavailable
from cantata.health.report import Check, degraded, failing, ok
from cantata.models.wire import RUN_OVER, RunStatus
from cantata.state.fleet import code_versions
from cantata.state.fleet.load import USUAL_QUEUES, QueueLoad
from cantata.state.fleet.registry import CLOCK_OFF_S, Worker, release, unserved
from cantata.text_format import duration

MAX_SWEEP_AGE_S = 10.0  # twenty sweeps: the sweeper is gone, and no other process took over
LONG_WAIT_S = 30.0  # for a free slot
FAILED_PART, MIN_RUNS = 0.1, 20  # more than a tenth, as with the alert CantataRunsFailing, of at least so many of the last
FAILED: Sequence[RunStatus] = ("failed", "timed_out", "exhausted")


def check_fleet(fleet: Fleet | Unavailable, version: str, broker: str = "") -> list[Check]:
    """Return checks of the workers, the code they serve, the sweep, each queue, the runs, and a broker apart from Redis."""
    if isinstance(fleet, Unavailable):
        return [failing("workers", f"the workers cannot be read: {fleet.reason}")]
    workers = [_workers(fleet.workers, version), *_code(fleet.workers)]
    return [*workers, _sweep(fleet), *_queues(fleet, broker), *_dead_letters(fleet), *_refused_steps(fleet), _runs(fleet)]


def _workers(workers: Sequence[Worker], version: str) -> Check:
    if not workers:
        return failing("workers", "no worker is running, so runs wait", "start workers with `submit worker coordinator agents tools`")
    message = f"{len(workers)}, of version {', '.join(sorted({worker.version for worker in workers}))}"
    newest = max((version, *(worker.version for worker in workers)), key=release)
    older = [worker.name for worker in workers if release(worker.version) < release(newest)]
    if older:
        message = f"{message}; older than {newest}: {_enumerate(older)}"
        return degraded("workers", message, "restart them with the newest version; until then they refuse steps that they do not know")
    duplicates = [f"{worker.name} and {worker.duplicate}" for worker in workers if worker.duplicate]
    if duplicates:
        return degraded(
            "workers", f"{message}; same name, so counted as one: {_enumerate(duplicates)}", "start one of them with another --name"
        )
    off = [f"{worker.name} {worker.clock_off_s:+.0f} s" for worker in workers if abs(worker.clock_off_s) > CLOCK_OFF_S]
    if off:
        return degraded("workers", f"{message}; clocks differ from Redis's: {_enumerate(off)}", "set the clocks; runs are not affected")
    if release(version) < release(newest):
        return degraded("workers", f"{message}; this command has the older version {version}", "upgrade this machine")
    return ok("workers", message)


def _code(workers: Sequence[Worker]) -> list[Check]:
    """Return a check of the user modules that workers serve; none if they serve none."""
    if mixed := code_versions.describe_served({worker.name: worker.code for worker in workers}):
        return [degraded("code", f"workers serve different versions of a module: {mixed}", "restart the workers that serve the older one")]
    modules = sorted({entry for worker in workers for entry in worker.code})
    return [ok("code", f"every worker serves the same: {_enumerate(modules)}")] if modules else []


def _sweep(fleet: Fleet) -> Check:
    age_s = fleet.sweep_age_s
    if age_s is not None and age_s <= MAX_SWEEP_AGE_S:
        return ok("sweep", f"{duration(age_s * 1000)} ago")
    since = "no sweep yet" if age_s is None else f"no sweep for {duration(age_s * 1000)}"
    if fleet.workers and all(worker.seen_at + worker.clock_off_s - worker.started_at < MAX_SWEEP_AGE_S for worker in fleet.workers):
        return degraded("sweep", f"{since}: the workers have just started", "check again in a few seconds")
    action = (
        "look for sweep_failed and shard_sweep_failed in the logs of the workers" if fleet.workers else "start a worker: each can sweep"
    )
    return failing("sweep", f"{since}: timers do not fire, and lost steps are not recovered", action)


def _refused_steps(fleet: Fleet) -> list[Check]:
    """Return a check of the steps that workers refused; none if there are none."""
    if not fleet.refused_steps:
        return []
    first, *others = fleet.refused_steps
    more = f"; and {len(others)} more" if others else ""
    action = "start a worker that can run it; the step then continues by itself, or ends with its run's deadline"
    return [degraded("steps", f"refused by workers in the last minute: {first}{more}", action)]


def _queues(fleet: Fleet, broker: str) -> list[Check]:
    if isinstance(fleet.queues, Unavailable):
        return [failing("broker", f"the queues cannot be read: {fleet.queues.reason}")]
    own = [ok("broker", f"{broker} answers")] if broker else []
    return [*own, *(_queue(name, load) for name, load in fleet.queues.items())]


def _queue(name: str, load: QueueLoad) -> Check:
    since = "" if load.oldest_wait_s is None else f", the oldest for {duration(load.oldest_wait_s * 1000)}"
    waiting = f"{load.ready:,} waiting{since}" if load.ready else "nothing waiting"
    if not load.workers:
        problem, _, action = unserved(name).partition(": ")
        is_missed = load.ready > 0 or name == USUAL_QUEUES[0]
        return (failing if is_missed else degraded)(f"queue {name}", f"{problem}; {waiting}", action)
    message = f"{load.leased:,} of {load.slots:,} slots in use, {waiting}"
    if load.oldest_wait_s is not None and load.oldest_wait_s > LONG_WAIT_S:
        return degraded(f"queue {name}", message, f"start more workers with `submit worker {name}`, or wait")
    return ok(f"queue {name}", message)


def _dead_letters(fleet: Fleet) -> list[Check]:
    if not fleet.dead_letters:
        return []
    message = f"{fleet.dead_letters:,} messages in the queues were not steps; they are kept"
    return [degraded("dead letters", message, "find out who sent them, and delete them, as docs/redis.md describes")]


def _runs(fleet: Fleet) -> Check:
    ended = {status: count for status in sorted(RUN_OVER) if (count := fleet.totals.get(f"closed:{status}", 0))}
    message = ", ".join([f"{fleet.runs_open:,} open", *(f"{count:,} {status.replace('_', ' ')}" for status, count in ended.items())])
    last, failed = sum(fleet.last_ended.values()), {status: count for status in FAILED if (count := fleet.last_ended.get(status, 0))}
    if last >= MIN_RUNS and sum(failed.values()) > FAILED_PART * last:
        counts = " and ".join(f"{count} {status.replace('_', ' ')}" for status, count in failed.items())
        commonest = max(failed, key=failed.__getitem__)
        return degraded("runs", f"{message}; of the last {last} that ended, {counts}", f"see `submit runs list --status {commonest}`")
    return ok("runs", message)


def _enumerate(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
