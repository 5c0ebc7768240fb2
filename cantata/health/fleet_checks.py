"""What is said of who works, of what waits for them, and of the runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.health.facts import Fleet, Missing
from cantata.health.report import Line, green, red, yellow
from cantata.models.wire import RUN_OVER, RunStatus
from cantata.state.fleet import code_versions
from cantata.state.fleet.load import USUAL_QUEUES, QueueLoad
from cantata.state.fleet.registry import CLOCK_OFF_S, Worker, release, unserved
from cantata.text_format import duration

SWEPT_S = 10.0  # twenty sweeps: who swept is gone, and nobody took over
LONG_WAIT_S = 30.0  # for a free slot
MANY_FAILED, OF_RUNS = 0.1, 20  # more than a tenth, as with the alert CantataRunsFailing, of at least so many of the last
FAILED: Sequence[RunStatus] = ("failed", "timed_out", "exhausted")


def of_fleet(fleet: Fleet | Missing, version: str, broker: str = "") -> list[Line]:
    """Return lines for the workers, the code they serve, the sweep, each queue, the runs, and a broker apart from Redis."""
    if isinstance(fleet, Missing):
        return [red("workers", f"who works is not known: {fleet.why}")]
    workers = [_of_workers(fleet.workers, version), *_of_code(fleet.workers)]
    queues, letters = _of_queues(fleet, broker), _of_letters(fleet)
    return [*workers, _of_sweep(fleet), *queues, *letters, *_of_steps(fleet), _of_runs(fleet)]


def _of_workers(workers: Sequence[Worker], version: str) -> Line:
    if not workers:
        return red("workers", "nobody works, so runs wait", "start some with `submit worker coordinator agents tools`")
    said = f"{len(workers)}, of version {', '.join(sorted({worker.version for worker in workers}))}"
    newest = max((version, *(worker.version for worker in workers)), key=release)
    older = [worker.name for worker in workers if release(worker.version) < release(newest)]
    if older:
        said = f"{said}; older than {newest}: {_some(older)}"
        return yellow("workers", said, "start them again with the newest version; until then they hand back what they do not know")
    duplicates = [f"{worker.name} and {worker.duplicate}" for worker in workers if worker.duplicate]
    if duplicates:
        return yellow("workers", f"{said}; of one name, so they count as one: {_some(duplicates)}", "start one of them with another --name")
    off = [f"{worker.name} {worker.clock_off_s:+.0f} s" for worker in workers if abs(worker.clock_off_s) > CLOCK_OFF_S]
    if off:
        return yellow("workers", f"{said}; clocks are off Redis's: {_some(off)}", "set them; runs are not harmed")
    if release(version) < release(newest):
        return yellow("workers", f"{said}; this command is of the older version {version}", "bring this machine up to date")
    return green("workers", said)


def _of_code(workers: Sequence[Worker]) -> list[Line]:
    """Return a line for the user's modules that workers serve; none if they serve none."""
    if mixed := code_versions.served({worker.name: worker.code for worker in workers}):
        return [yellow("code", f"workers serve different versions of a module: {mixed}", "restart the workers that serve the older one")]
    modules = sorted({entry for worker in workers for entry in worker.code})
    return [green("code", f"every worker serves the same: {_some(modules)}")] if modules else []


def _of_sweep(fleet: Fleet) -> Line:
    age_s = fleet.sweep_age_s
    if age_s is not None and age_s <= SWEPT_S:
        return green("sweep", f"{duration(age_s * 1000)} ago")
    since = "nobody has swept yet" if age_s is None else f"nobody has swept for {duration(age_s * 1000)}"
    if fleet.workers and all(worker.seen_at + worker.clock_off_s - worker.started_at < SWEPT_S for worker in fleet.workers):
        return yellow("sweep", f"{since}: the workers have just started", "ask again in a few seconds")
    said = f"{since}: timers do not fire, and what was lost is not found again"
    todo = "look for sweep_failed and shard_not_swept in the logs of the workers" if fleet.workers else "start a worker: each can sweep"
    return red("sweep", said, todo)


def _of_steps(fleet: Fleet) -> list[Line]:
    """A line for the steps that no worker could do yet."""
    if not fleet.handed_back:
        return []
    first, *others = fleet.handed_back
    more = f"; and {len(others)} more" if others else ""
    todo = "start a worker that can do it; the step goes on by itself, or ends with its run's deadline"
    return [yellow("steps", f"handed back in the last minute: {first}{more}", todo)]


def _of_queues(fleet: Fleet, broker: str) -> list[Line]:
    if isinstance(fleet.queues, Missing):
        return [red("broker", f"what waits in the queues is not known: {fleet.queues.why}")]
    own = [green("broker", f"{broker} answers")] if broker else []
    return [*own, *(_of_queue(name, load) for name, load in fleet.queues.items())]


def _of_queue(name: str, load: QueueLoad) -> Line:
    since = "" if load.oldest_wait_s is None else f", the oldest for {duration(load.oldest_wait_s * 1000)}"
    waits = f"{load.ready:,} waiting{since}" if load.ready else "nothing waits"
    if not load.workers:
        nobody, _, todo = unserved(name).partition(": ")
        is_missed = load.ready > 0 or name == USUAL_QUEUES[0]
        return (red if is_missed else yellow)(f"queue {name}", f"{nobody}; {waits}", todo)
    said = f"{load.leased:,} of {load.slots:,} slots in use, {waits}"
    if load.oldest_wait_s is not None and load.oldest_wait_s > LONG_WAIT_S:
        return yellow(f"queue {name}", said, f"start more workers with `submit worker {name}`, or wait")
    return green(f"queue {name}", said)


def _of_letters(fleet: Fleet) -> list[Line]:
    if not fleet.dead_letters:
        return []
    said = f"{fleet.dead_letters:,} messages in our queues were no steps, and are kept"
    return [yellow("dead letters", said, "find out who sent them, and drop them, as docs/redis.md says")]


def _of_runs(fleet: Fleet) -> Line:
    ended = {status: count for status in sorted(RUN_OVER) if (count := fleet.totals.get(f"closed:{status}", 0))}
    said = ", ".join([f"{fleet.runs_open:,} open", *(f"{count:,} {status.replace('_', ' ')}" for status, count in ended.items())])
    last, failed = sum(fleet.last_ended.values()), {status: count for status in FAILED if (count := fleet.last_ended.get(status, 0))}
    if last >= OF_RUNS and sum(failed.values()) > MANY_FAILED * last:
        how = " and ".join(f"{count} {status.replace('_', ' ')}" for status, count in failed.items())
        most = max(failed, key=failed.__getitem__)
        todo = f"look at some of them with `submit runs list --status {most}`"
        return yellow("runs", f"{said}; of the last {last} that ended {how}", todo)
    return green("runs", said)


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
