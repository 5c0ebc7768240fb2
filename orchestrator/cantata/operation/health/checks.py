"""Checks of Redis, the fleet, the limits and the services, made from facts; and the report of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from cantata.engine.fleet import code_versions
from cantata.engine.fleet.load import MAX_SWEEP_AGE_S, USUAL_QUEUES, QueueLoad, have_just_started
from cantata.engine.fleet.registry import CLOCK_OFF_S, SERVED_BY, Worker, release, unserved
from cantata.errors import MISMATCH
from cantata.flows.wire import RUN_OVER, RunStatus
from cantata.operation.health.facts import Facts, FleetFacts, LimitFacts, RedisFacts, ServiceProbe, Unavailable
from cantata.text.text_format import duration, line, state_label, utc
from cantata.values import Value

SLOW_MS = 200.0  # a longer round trip slows every step; usual is below 1
HIGH, CRITICAL = 0.8, 0.95  # of the capacity of Redis, or of the daily budget
SLOW_SERVICE_MS = 1000.0
SOON_S = 4 * 3600.0  # a forecast that Redis is full by then needs somebody's attention
LAG_S = 10  # a replica that is further behind loses that much if it takes over
UNITS = ("B", "kB", "MB", "GB", "TB")
MAX_NAMED = 3  # parked items that a line names
LONG_WAIT_S = 30.0  # for a free slot
FAILED_PART, MIN_RUNS = (
    0.1,
    20,
)  # more than a tenth, as with the alert CantataRunsFailing, of at least so many of the last
FAILED: Sequence[RunStatus] = ("failed", "timed_out", "exhausted")

CheckStatus = Literal["ok", "degraded", "failing"]
Info = Mapping[str, Any]

SEVERITIES: dict[CheckStatus, int] = {"ok": 0, "degraded": 1, "failing": 2}


class Check(Value):
    """Result of checking one part of a deployment."""

    name: str = Field(description="the part that was checked, in a word or two")
    status: CheckStatus = Field(description="ok; degraded: it works, with a problem; failing: it does not work")
    message: str = Field(description="the state of the part, and the problem if there is one")
    action: str = Field(default="", description="the action to take; empty if there is none, or if `message` names it")


class HealthReport(Value):
    """Results of all checks."""

    status: CheckStatus = Field(description="the worst status of the checks")
    checks: tuple[Check, ...] = Field(description="one check for each part")


def ok(name: str, message: str) -> Check:
    """Return a check without a problem."""
    return Check(name=name, status="ok", message=message)


def degraded(name: str, message: str, action: str = "") -> Check:
    """Return a check of a part that works, with a problem."""
    return Check(name=name, status="degraded", message=message, action=action)


def failing(name: str, message: str, action: str = "") -> Check:
    """Return a check of a part that does not work."""
    return Check(name=name, status="failing", message=message, action=action)


def evaluate(facts: Facts) -> HealthReport:
    """Return the health that these facts show."""
    checks = check_redis(facts.redis)
    if not isinstance(facts.redis, Unavailable) or not isinstance(
        facts.fleet, Unavailable
    ):  # else both have the same reason
        checks += [*check_fleet(facts.fleet, facts.version, facts.broker), *check_limits(facts.limits)]
    checks += [*map(_service, facts.services), *check_stack(facts.stack_home, facts.dead_processes, facts.code_fault)]
    return report_of(checks)


def report_of(checks: Iterable[Check]) -> HealthReport:
    """Return the report of these checks."""
    found = tuple(checks)
    return HealthReport(
        status=max((check.status for check in found), key=SEVERITIES.__getitem__, default="ok"), checks=found
    )


# --- Redis ----------------------------------------------------------------------------------------------------------


def check_redis(facts: RedisFacts | Unavailable) -> list[Check]:
    """Return checks of Redis itself, and of the disk, memory and replicas of each node."""
    if isinstance(facts, Unavailable):
        return [failing("Redis", facts.reason)]
    checks = [_server(facts)]
    for node in facts.nodes:
        suffix = f" {node.address}" if len(facts.nodes) > 1 else ""
        checks += [
            _disk(f"disk{suffix}", node.info),
            _memory(f"memory{suffix}", node.info),
            *_replicas(f"replicas{suffix}", node.info),
        ]
    return checks


def _server(facts: RedisFacts) -> Check:
    address = facts.nodes[0].address if len(facts.nodes) == 1 else f"{len(facts.nodes)} nodes"
    first = facts.nodes[0].info
    up = duration(1000 * float(first.get("uptime_in_seconds", 0)))
    message = f"{_version(first)} at {address}, up {up}, answers in {facts.answer_ms:.1f} ms"
    if facts.write_error:
        return failing("Redis", f"{message}, but refuses writes: {facts.write_error}")
    if facts.answer_ms > SLOW_MS:
        return degraded(
            "Redis", f"{message}, which slows every step", "check for slow commands, swapping and network latency"
        )
    for node in facts.nodes:
        clients, limit = int(node.info.get("connected_clients", 0)), int(node.info.get("maxclients", 0))
        if limit and clients > HIGH * limit:
            return degraded(
                "Redis",
                f"{message}; {clients:,} of the {limit:,} connections of {node.address} are in use",
                "raise its maxclients",
            )
    return ok("Redis", message)


def _disk(name: str, info: Info) -> Check:
    if not info.get("aof_enabled"):
        return degraded(name, "the AOF is off: open runs are lost if Redis restarts", "set appendonly yes")
    if info.get("aof_last_write_status", "ok") != "ok":
        return failing(
            name,
            "the AOF cannot be written, so writes are refused and runs wait",
            "free space on the disk that Redis writes to",
        )
    message = f"AOF, {size(info.get('aof_current_size', 0))}"
    for field, operation in (("aof_last_bgrewrite_status", "AOF rewrite"), ("rdb_last_bgsave_status", "RDB snapshot")):
        if info.get(field, "ok") != "ok":
            return degraded(
                name, f"{message}; the last {operation} failed", "check the log of Redis and the free space on its disk"
            )
    return ok(name, message)


def _memory(name: str, info: Info) -> Check:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    capacity = limit or int(info.get("total_system_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    message = f"{size(used)} of {size(capacity)}" if capacity else size(used)
    message += "" if limit else ", without maxmemory"
    if limit and policy != "noeviction":
        message = f"{message}; when it is full, finished runs are evicted early (maxmemory-policy {policy})"
        return degraded(name, message, "set maxmemory-policy noeviction")
    if capacity and used > HIGH * capacity:
        action = (
            "raise its maxmemory, or shorten the retention of runs"
            if limit
            else "give it more memory, and set maxmemory"
        )
        check = failing if used > CRITICAL * capacity else degraded
        return check(name, f"{message}; when it is full, writes are refused and runs wait", action)
    return ok(name, message)


def _replicas(name: str, info: Info) -> list[Check]:
    count = int(info.get("connected_slaves", 0))
    if not count:
        return []
    replicas = [found for number in range(count) if isinstance(found := info.get(f"slave{number}"), Mapping)]
    behind = [
        f"{each['ip']}:{each['port']}" for each in replicas if each["state"] != "online" or int(each["lag"]) > LAG_S
    ]
    if behind:
        message = f"{', '.join(behind)} of {count} lag behind: writes that they lack are lost if one of them takes over"
        return [degraded(name, message, "check their logs, and the network between")]
    return [ok(name, f"{count} in sync")]


def _version(info: Info) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits."""
    power = min(int(math.log(max(count, 1), 1000)), len(UNITS) - 1)
    return f"{count / 1000**power:.{1 if power else 0}f} {UNITS[power]}"


# --- the fleet ------------------------------------------------------------------------------------------------------


def check_fleet(fleet: FleetFacts | Unavailable, version: str, broker: str = "") -> list[Check]:
    """Return checks of the workers, the code they serve, the sweep, each queue, the runs, and a broker apart from Redis."""
    if isinstance(fleet, Unavailable):
        return [failing("workers", f"the workers cannot be read: {fleet.reason}")]
    if fleet.load.write_error:
        unknown = "unknown while Redis refuses writes: workers cannot announce themselves"
        return [
            degraded("workers", unknown, "see the check Redis"),
            *_forecast(fleet),
            *_parked(fleet),
            *_dead_letters(fleet),
        ]
    workers = [*_forecast(fleet), _workers(fleet.load.workers, version), *_code(fleet.load.workers)]
    workers += _lost_workers(fleet)
    steps = [*_parked(fleet), *_dead_letters(fleet), *_refused_steps(fleet), *_paused_models(fleet)]
    return [*workers, _sweep(fleet), *_queues(fleet, broker), *steps, _runs(fleet)]


def _forecast(fleet: FleetFacts) -> list[Check]:
    """Return a check of when Redis is full if it grows as in the last hour; none if it does not grow."""
    left_s = fleet.load.memory_full_in_s
    if left_s is None:
        return []
    message = f"Redis is full in about {duration(left_s * 1000)} if it grows as in the last hour"
    if left_s > SOON_S:
        return [ok("forecast", message)]
    return [degraded("forecast", message, "raise its maxmemory, or shorten the retention of runs")]


def _workers(workers: Sequence[Worker], version: str) -> Check:
    faults = [f"the record of {worker.name}: {worker.unreadable}" for worker in workers if worker.unreadable]
    workers = [worker for worker in workers if not worker.unreadable]
    if not workers:
        return failing("workers", "no worker is running, so runs wait", "start workers with `submit worker`")
    message = f"{len(workers)}, of version {', '.join(sorted({worker.version for worker in workers}))}"
    if drained := [
        f"{worker.name} ({worker.state}{f', by {worker.drained_by}' if worker.drained_by else ''})"
        for worker in workers
        if worker.state != "serving"
    ]:
        message = f"{message}; taking no work: {_enumerate(drained)}"
    if faults:
        return degraded("workers", f"{message}; {_enumerate(faults)}", "do for each what its line says")
    newest = max((version, *(worker.version for worker in workers)), key=release)
    older = [worker.name for worker in workers if release(worker.version) < release(newest)]
    if older:
        message = f"{message}; older than {newest}: {_enumerate(older)}"
        return degraded(
            "workers",
            message,
            "restart them with the newest version; until then they refuse steps that they do not know",
        )
    duplicates = [f"{worker.name} and {worker.duplicate}" for worker in workers if worker.duplicate]
    if duplicates:
        return degraded(
            "workers",
            f"{message}; same name, so counted as one: {_enumerate(duplicates)}",
            "start one of them with another --name",
        )
    off = [f"{worker.name} {worker.clock_off_s:+.0f} s" for worker in workers if abs(worker.clock_off_s) > CLOCK_OFF_S]
    if off:
        return degraded(
            "workers",
            f"{message}; clocks differ from Redis's: {_enumerate(off)}",
            "set the clocks; runs are not affected",
        )
    if release(version) < release(newest):
        return degraded("workers", f"{message}; this command has the older version {version}", "upgrade this machine")
    return ok("workers", message)


def _lost_workers(fleet: FleetFacts) -> list[Check]:
    """Return a check of the workers that were lost; none if none was."""
    lost = fleet.load.lost_workers
    if not lost:
        return []
    lines = []
    for worker in lost[:MAX_NAMED]:
        had = f"; it had {_enumerate(worker.steps)}" if worker.steps else ""
        lines.append(f"{worker.name} ({', '.join(worker.queues)}), last seen {utc(worker.seen_at)}{had}")
    more = f"; and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
    message = f"{len(lost)} ended without a shutdown, or are frozen: {'; '.join(lines)}{more}"
    return [degraded("lost workers", message, "look for the cause in its log and its machine's, and start another")]


def _code(workers: Sequence[Worker]) -> list[Check]:
    """Return a check of the user modules that workers serve; none if they serve none."""
    if faults := [
        f"{worker.name} cannot import {module}: {why}"
        for worker in workers
        for module, why in worker.code_faults.items()
    ]:
        return [failing("code", "; ".join(faults[:5]), "correct the file, run `submit check`, and restart the worker")]
    if mixed := code_versions.describe_served({worker.name: worker.code for worker in workers}):
        return [
            degraded(
                "code",
                f"workers serve different versions of a module: {mixed}",
                "restart the workers that serve the older one",
            )
        ]
    modules = sorted({entry for worker in workers for entry in worker.code})
    return [ok("code", f"every worker serves the same: {_enumerate(modules)}")] if modules else []


def _sweep(fleet: FleetFacts) -> Check:
    age_s, workers = fleet.load.sweep_age_s, fleet.load.workers
    if age_s is not None and age_s <= MAX_SWEEP_AGE_S:
        return ok("sweep", f"{duration(age_s * 1000)} ago")
    what = f"complete sweep ({fleet.load.sweep_fault})" if fleet.load.sweep_fault else "sweep"
    since = f"no {what} yet" if age_s is None else f"no {what} for {duration(age_s * 1000)}"
    if have_just_started(workers):
        return degraded("sweep", f"{since}: the workers have just started", "check again in a few seconds")
    action = (
        "look for sweep_failed, sweep_crashed and shard_sweep_failed in the logs of the workers"
        if workers
        else "start a worker: each can sweep"
    )
    return failing("sweep", f"{since}: timers do not fire, and lost steps are not recovered", action)


def _parked(fleet: FleetFacts) -> list[Check]:
    """Return a check of the items that the sweep has parked; none if there are none."""
    if not fleet.parked:
        return []
    first, *others = fleet.parked
    named = ", ".join(f"{item.id} ({item.duty} {line(item.item, 60)})" for item in fleet.parked[:MAX_NAMED])
    more = f" and {len(fleet.parked) - MAX_NAMED} more" if len(fleet.parked) > MAX_NAMED else ""
    message = f"{len(others) + 1} that the sweep cannot handle: {named}{more}; the first: {line(first.error, 200)}"
    action = f"correct the cause, then `submit parked retry {first.id}`, or `submit parked drop {first.id}`; `submit parked list` lists all"
    return [degraded("parked", message, action)]


def _refused_steps(fleet: FleetFacts) -> list[Check]:
    """Return a check of the steps that workers refused; none if there are none."""
    if not fleet.refused_steps:
        return []
    first, *others = fleet.refused_steps
    more = f"; and {len(others)} more" if others else ""
    needs = (
        "correct the code, or keep both ways with wf.patched" if MISMATCH in first else "start a worker that can run it"
    )
    action = f"{needs}; the step then continues by itself, or ends with its run's deadline"
    return [degraded("steps", f"refused by workers in the last minute: {first}{more}", action)]


def _paused_models(fleet: FleetFacts) -> list[Check]:
    """Return a check of the models that are paused; none if there are none."""
    return [
        degraded(
            f"model {paused.model}",
            f"paused since {utc(paused.since)}, until {utc(paused.until)}: {paused.message or 'its provider asked for that'}",
            f"wait, name fallbacks, or end the pause with `submit models resume {paused.model}`",
        )
        for paused in fleet.load.paused_models
    ]


def _queues(fleet: FleetFacts, broker: str) -> list[Check]:
    if isinstance(fleet.queues, Unavailable):
        return [failing("broker", f"the queues cannot be read: {fleet.queues.reason}")]
    if not fleet.has_broker:
        unread = ok(
            "broker",
            "this command cannot look into the broker: it has no Celery 5.5 or newer, or CANTATA_BROKER_URL is 'none'",
        )
        return [
            unread,
            *(
                _paused(name, load, "", fleet.load.workers) if load.paused else _unserved(name, "", fleet.load.workers)
                for name, load in fleet.queues.items()
                if load.paused or not load.workers
            ),
        ]
    own = [ok("broker", f"{broker} answers")] if broker else []
    return [*own, *(_queue(name, load, fleet.load.workers) for name, load in fleet.queues.items())]


def _queue(name: str, load: QueueLoad, workers: Sequence[Worker]) -> Check:
    since = "" if load.oldest_wait_s is None else f", the oldest for {duration(load.oldest_wait_s * 1000)}"
    waiting = f"{load.ready:,} waiting{since}" if load.ready else "nothing waiting"
    if load.paused:
        return _paused(name, load, waiting, workers)
    if not load.workers:
        return _unserved(name, waiting, workers, is_missed=load.ready > 0)
    message = f"{load.leased:,} of {load.slots:,} slots in use, {waiting}"
    if load.oldest_wait_s is not None and load.oldest_wait_s > LONG_WAIT_S:
        return degraded(
            f"queue {name}", message, f"start more workers with `submit worker {SERVED_BY.get(name, name)}`, or wait"
        )
    return ok(f"queue {name}", message)


def _paused(name: str, load: QueueLoad, waiting: str, workers: Sequence[Worker]) -> Check:
    """Return the check of a paused queue: it is as somebody decided, so it is not failing, whatever waits or is served."""
    since = load.paused.describe().removeprefix("is ") if load.paused else ""
    under_way = f"{load.leased:,} under way, {waiting}" if waiting else f"{load.leased:,} under way"
    message = f"{since}; {under_way}; deadlines of its steps keep running"
    if others := [
        each.name for each in workers if name in each.queues and name not in each.held and not each.unreadable
    ]:
        message += f"; not followed by {_enumerate(others)}, as by a worker of an older version"
    return degraded(f"queue {name}", message, f"resume it with `submit queues resume {name}`")


def _unserved(name: str, waiting: str, workers: Sequence[Worker], *, is_missed: bool = False) -> Check:
    problem, _, action = unserved(name, workers).partition(": ")
    message = "; ".join(filter(None, (problem, waiting)))
    return (failing if is_missed or name == USUAL_QUEUES[0] else degraded)(f"queue {name}", message, action)


def _dead_letters(fleet: FleetFacts) -> list[Check]:
    if not fleet.load.dead_letters:
        return []
    message = f"{fleet.load.dead_letters:,} messages in the queues were not steps; they are kept"
    return [degraded("dead letters", message, "find out who sent them, and delete them, as docs/redis.md describes")]


def _runs(fleet: FleetFacts) -> Check:
    totals = fleet.load.totals
    counted: dict[str, int] = {status: totals.get(f"closed:{status}", 0) for status in sorted(RUN_OVER)}
    counted = {"open": fleet.load.runs_open, **counted, "retried": totals.get("retried", 0)}
    message = ", ".join(
        f"{count:,} {state_label(status)}" for status, count in counted.items() if count or status == "open"
    )
    if lost := totals.get("lost", 0):
        message += f"; steps that lost their worker: {lost:,}"
    last, failed = (
        sum(fleet.last_ended.values()),
        {status: count for status in FAILED if (count := fleet.last_ended.get(status, 0))},
    )
    if last >= MIN_RUNS and sum(failed.values()) > FAILED_PART * last:
        counts = " and ".join(f"{count} {state_label(status)}" for status, count in failed.items())
        commonest = max(failed, key=failed.__getitem__)
        return degraded(
            "runs",
            f"{message}; of the last {last} that ended, {counts}",
            f"see `submit runs list --status {commonest}`",
        )
    return ok("runs", message)


def _enumerate(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def check_limits(facts: LimitFacts | Unavailable | None) -> list[Check]:
    """Return a check of the model limits and the daily budget, if the local configuration sets any."""
    if facts is None:
        return []
    if isinstance(facts, Unavailable):
        return [degraded("limits", f"the limits cannot be read: {facts.reason}")]
    return [_limits(facts)]


def _limits(facts: LimitFacts) -> Check:
    spent = _spent_part(facts)
    if spent >= 1:
        return failing(
            "limits",
            "the daily budget is spent: runs end as exhausted",
            "raise limits.budgets.day, or wait until midnight UTC",
        )
    models = facts.usage.models
    if spent > HIGH:
        return degraded(
            "limits", f"{spent:.0%} of the daily budget is spent", "raise limits.budgets.day if that is too little"
        )
    waiting = [f"{found.waiting:,} waiting for {name}" for name, found in models.items() if found.waiting]
    return ok("limits", ", ".join(waiting) or "no calls waiting")


def _spent_part(facts: LimitFacts) -> float:
    """Return the part of the daily budget that is spent: of tokens or of dollars, the larger one."""
    budget, usage = facts.limits.budgets.day, facts.usage
    return max(
        0.0 if limit is None else spent / limit if limit else 1.0  # a budget of 0 allows nothing
        for limit, spent in ((budget.tokens, usage.spent_tokens), (budget.usd, usage.spent_usd))
    )


def _service(probe: ServiceProbe) -> Check:
    """Return the check of an HTTP service. Runs need none of them, but clients need the gateway."""
    if probe.answer_ms is None:
        check = failing if probe.name == "gateway" else degraded
        return check(probe.name, f"{probe.url} {probe.fault}; runs continue without it", "restart it, or check its log")
    message = f"{probe.url} answers in {probe.answer_ms:.0f} ms"
    if probe.fault:
        return degraded(probe.name, f"{message}, but is not ready: {probe.fault}")
    if probe.answer_ms > SLOW_SERVICE_MS:
        return degraded(probe.name, f"{message}, which is slow; runs continue without it", "check its load")
    return ok(probe.name, message)


def check_stack(home: str, dead_processes: Sequence[str], code_fault: str = "") -> list[Check]:
    """Return a check of the local stack, if one runs."""
    if not home:
        return []
    if code_fault:
        return [
            degraded(
                "stack",
                f"the stack in {home} still serves the previous code: {code_fault}",
                "correct the file; it is then reloaded",
            )
        ]
    if dead_processes:
        message = f"of the stack in {home}, {', '.join(dead_processes)} {'is' if len(dead_processes) == 1 else 'are'} not running"
        return [degraded("stack", message, f"check {home}/logs if that does not restart by itself")]
    return [ok("stack", f"all processes are running, in {home}")]
