"""The load of the fleet, for monitoring and scaling.

It takes a few hundred commands in one round trip, whatever the number of runs; nothing is searched for. `dispatch.queues.waiting` returns
what waits in the broker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field
from redis import Redis
from redis.exceptions import ResponseError

from cantata.engine.fleet import memory, registry
from cantata.engine.fleet.dead_letters import LETTERS_KEY
from cantata.engine.fleet.holds import PausedQueue, paused
from cantata.engine.fleet.lost_workers import LostWorker, lost_workers
from cantata.engine.limits.limiter import PausedModel, paused_models
from cantata.ledger.records import owner_of
from cantata.ledger.redis import clock
from cantata.ledger.redis.cluster import memory_of, refused_writes
from cantata.ledger.redis.connection import RedisFailure, reason
from cantata.ledger.redis.keys import SHARDS, key_of, run_key, shard_key
from cantata.ledger.redis.pieces import ask_shards
from cantata.ledger.redis.records import ask_apart
from cantata.values import Value

SWEPT_KEY = "swept"  # string: when a sweep last ended, in seconds by Redis's clock; never expires, so that an alert on its age goes on
SWEEP_FAULT_KEY = "sweep_fault"  # string: why the last sweep was not complete; expires soon after
SWEEP_FAULT_S = 30
MAX_SWEEP_AGE_S = 10.0  # twenty sweeps: the sweeper is gone or fails, and no other process took over
USUAL_QUEUES = ("coordinator", "agents", "tools")
MAX_LOOKUPS = 1000  # leases whose step is read for its queue; further ones count for the first queue of their worker
OVERDUE_S = 60.0  # after its time, a schedule that was not fired counts as overdue
PARTS = ("runs", "finished", "ready")
RECENT_RUNS = 100  # runs that ended: enough to see that many fail, few enough to recover soon after a fix


class QueueLoad(Value):
    """The load of a queue, and its workers."""

    ready: int = Field(description="messages that wait: a step each, or a batch of cheap ones")
    leased: int = Field(description="steps that workers are doing")
    work: int = Field(
        description="ready and leased: what to scale workers by; of a paused queue only leased, since no worker may take the others"
    )
    slots: int = Field(description="steps that its workers can do at once")
    workers: int = Field(description="worker processes that serve it, without drained ones")
    paused: PausedQueue | None = Field(
        default=None, description="since when no worker takes work from it, and who paused it; null if it is not paused"
    )
    oldest_wait_s: float | None = Field(
        description="how long the oldest message has waited; null if none waits, or it cannot be seen"
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages of a queue that no worker has received."""

    count: int
    oldest_s: float | None = None
    """The waiting time of the oldest; None if there is none, or it is unknown."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of the fleet, without what waits in the broker."""

    workers: Sequence[registry.Worker]
    """Those that are alive."""
    leased: Mapping[str, int]
    runs_open: int
    runs_kept: int
    steps_ready: int
    """Steps sent and not begun, in all queues: the ledger counts steps, the broker messages."""
    totals: Mapping[str, int]
    """Events since the ledger began → how often: accepted, retried, closed:<status>, delivered:<status> (webhooks), lost, recovered."""
    sweep_age_s: float | None
    """Since a sweep last ended and did all its duties; None if none ever did."""
    memory_bytes: int
    memory_limit_bytes: int
    """0 if there is none."""
    memory_full_in_s: float | None = None
    """Until Redis is full if it grows as in the last hour; None if it does not grow, or that is not known."""
    write_error: str = ""
    """Why Redis refuses writes; empty if it takes them. If not, workers cannot announce themselves: nothing is known of them."""
    refused_writes: int = 0
    """Writes that Redis has refused since it started, since it was full or could not write its disk."""
    sweep_fault: str = ""
    """Why the last sweep was not complete; empty if it was."""
    lost_workers: Sequence[LostWorker] = ()
    """Those that vanished or froze within the last ten minutes; none while Redis refuses writes."""
    dead_letters: int = 0
    """Messages in our queues that were not steps, and are kept."""
    runs_waiting: int = 0
    """Open runs with a step that waits for a person."""
    schedules_overdue: int = 0
    """Schedules that should have been fired a minute ago."""
    paused_models: Sequence[PausedModel] = ()
    """Models that nobody calls for a while, at their providers' request."""
    paused_queues: Mapping[str, PausedQueue] = field(default_factory=dict)
    """Queues from which no worker takes work, as somebody decided."""


def record_sweep(redis: Redis) -> None:
    """Record that a sweep of all shards has ended, and did all its duties."""
    redis.set(key_of(redis, SWEPT_KEY), f"{clock.now():.3f}")


def record_sweep_fault(redis: Redis, fault: str) -> None:
    """Record why a sweep is not complete."""
    redis.set(key_of(redis, SWEEP_FAULT_KEY), fault, ex=SWEEP_FAULT_S)


def sweep_fault(redis: Redis, workers: Sequence[registry.Worker]) -> str:
    """Return why timers do not fire now: no sweep was complete for MAX_SWEEP_AGE_S. Empty if one was, or the workers have just started."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.get(key_of(redis, SWEPT_KEY))
        pipe.get(key_of(redis, SWEEP_FAULT_KEY))
        swept_at, fault = pipe.execute()
    age_s = _age_s(swept_at)
    if (age_s is not None and age_s <= MAX_SWEEP_AGE_S) or have_just_started(workers):
        return ""
    what = f"complete sweep ({fault})" if fault else "sweep"
    return f"no {what} {'yet' if age_s is None else f'for {age_s:.0f} s'}: timers do not fire, and lost steps are not recovered"


def have_just_started(workers: Sequence[registry.Worker]) -> bool:
    """Return whether there are workers, and none has had the time for a sweep."""
    return bool(workers) and all(
        worker.seen_at + worker.clock_off_s - worker.started_at < MAX_SWEEP_AGE_S for worker in workers
    )


def _age_s(swept_at: str | None) -> float | None:
    """Return the time since a sweep ended; None if none ever did, or its record cannot be read."""
    try:
        return max(0.0, clock.now() - float(swept_at)) if swept_at else None
    except ValueError:
        return None


def write_error(redis: Redis, place: str = "") -> str:
    """Return why a shard refuses writes; empty if none does. The writes change nothing: the keys do not exist."""
    with redis.pipeline(transaction=False) as pipe:
        for shard in range(SHARDS):
            pipe.set(f"{shard_key(redis, shard)}:asked", "1", xx=True)
        answers = pipe.execute(raise_on_error=False)
    return next((reason(answer, place) for answer in answers if isinstance(answer, RedisFailure)), "")


def measure(redis: Redis) -> FleetLoad:
    """Return the load of the fleet now."""
    workers = registry.workers(redis)
    with redis.pipeline(transaction=False) as pipe:
        for key in (shard_key(redis, shard) for shard in range(SHARDS)):
            for part in PARTS:
                pipe.zcard(f"{key}:{part}")
            pipe.hgetall(f"{key}:totals")
            pipe.zrange(f"{key}:leases", 0, -1)
            pipe.zrange(f"{key}:asking", 0, -1)
            pipe.zcount(f"{key}:schedules", "-inf", int((clock.now() - OVERDUE_S) * 1000))
        pipe.get(key_of(redis, SWEPT_KEY))
        pipe.get(key_of(redis, SWEEP_FAULT_KEY))
        pipe.llen(key_of(redis, LETTERS_KEY))
        *answers, swept_at, fault, dead = pipe.execute()
    kept, finished, ready, totals, leases, asking, overdue = (
        answers[i :: len(PARTS) + 4] for i in range(len(PARTS) + 4)
    )
    used_bytes, limit_bytes = memory.used_and_limit(memory_of(redis))
    events = Counter[str]()
    for each in totals:
        events.update({name: int(number) for name, number in each.items() if number.lstrip("-").isdigit()})
    refusal = write_error(redis)
    return FleetLoad(
        workers=workers,
        leased=_by_queue(redis, [lease for each in leases for lease in each], workers),
        runs_open=max(0, sum(kept) - sum(finished)),
        runs_waiting=len({member.partition("|")[0] for each in asking for member in each}),
        schedules_overdue=sum(overdue),
        runs_kept=sum(kept),
        steps_ready=sum(ready),
        totals=events,
        sweep_age_s=_age_s(swept_at),
        write_error=refusal,
        refused_writes=refused_writes(redis),
        lost_workers=() if refusal else lost_workers(redis),
        sweep_fault=fault or "",
        memory_bytes=used_bytes,
        memory_limit_bytes=limit_bytes,
        memory_full_in_s=memory.full_in_s(memory.samples(redis), used_bytes, limit_bytes),
        dead_letters=int(dead),
        paused_models=paused_models(redis),
        paused_queues=paused(redis),
    )


def recent_outcomes(redis: Redis, *, most: int = RECENT_RUNS) -> dict[str, int]:
    """Return the outcomes of the runs that ended last: status → how many of at most `most`; `retried` if it was retried since.

    They are known by when they expire, which is the order of their ends where all are kept equally long.
    """
    shards = ask_shards(redis, lambda pipe, key: pipe.zrevrange(f"{key}:finished", 0, most - 1, withscores=True))
    ended = [found for shard in shards for found in shard]
    ended.sort(key=lambda found: found[1], reverse=True)
    keys = [run_key(redis, run_id) for run_id, _ in ended[:most]]
    found = _fields(redis, [(key, field) for key in keys for field in ("status", "retried_as")])
    return dict(
        Counter("retried" if retry else status for status, retry in zip(found[::2], found[1::2], strict=True) if status)
    )


def queues(fleet: FleetLoad, waiting: Mapping[str, Waiting]) -> dict[str, QueueLoad]:
    """Return the load of each queue that is served, has leased steps, is paused, or is in `waiting`."""
    served = [queue for worker in fleet.workers for queue in worker.queues]
    return {
        queue: _load(queue, fleet, waiting.get(queue, Waiting(0)))
        for queue in sorted({*served, *fleet.leased, *waiting, *fleet.paused_queues})
    }


def list_ready_queues(redis: Redis, *, each: int = 4) -> set[str]:
    """Return the queues of the steps that have waited longest in each shard, also those that nobody serves and no configuration names."""
    shards = ask_shards(redis, lambda pipe, key: pipe.zrange(f"{key}:ready", 0, each - 1))
    return set(
        _queues_of(redis, [(step.partition("|")[0], step.partition("|")[2]) for shard in shards for step in shard])
    )


def _load(queue: str, fleet: FleetLoad, waiting: Waiting) -> QueueLoad:
    serving = [worker for worker in fleet.workers if queue in worker.serving]
    leased, pause = fleet.leased.get(queue, 0), fleet.paused_queues.get(queue)
    return QueueLoad(
        ready=waiting.count,
        leased=leased,
        work=leased + (0 if pause else waiting.count),
        slots=sum(worker.slots_of(queue) for worker in serving),
        workers=len(serving),
        oldest_wait_s=waiting.oldest_s,
        paused=pause,
    )


def _by_queue(redis: Redis, leases: Sequence[str], workers: Iterable[registry.Worker]) -> dict[str, int]:
    """Count the leased steps of each queue: the queue that their worker serves, if it is one; else that in the step's spec."""
    served = {worker.name: worker.queues for worker in workers}
    counts: dict[str, int] = {}
    unclear: list[str] = []
    for lease in filter(_is_readable, leases):
        known = served.get(_worker_of(lease), ())
        if len(known) == 1 or (known and len(unclear) >= MAX_LOOKUPS):
            counts[known[0]] = counts.get(known[0], 0) + 1
        elif len(unclear) < MAX_LOOKUPS:
            unclear.append(lease)
    for queue in _queues_of(redis, [_leased(lease) for lease in unclear]):
        counts[queue] = counts.get(queue, 0) + 1
    return counts


def _queues_of(redis: Redis, steps: Iterable[tuple[str, str]]) -> list[str]:
    """Return the queues in the specs of steps (run, step), without those that are deleted or cannot be read."""
    places = [(f"{run_key(redis, run_id)}:steps", step_id) for run_id, step_id in steps]
    specs = _fields(redis, places)
    shared = [(key, spec[1:]) for (key, _), spec in zip(places, specs, strict=True) if spec and spec.startswith("=")]
    texts = [spec for spec in specs if spec and not spec.startswith("=")] + [
        spec for spec in _fields(redis, shared) if spec
    ]
    return [queue for text in texts if (queue := _queue_in(text)) is not None]


def _queue_in(spec: str) -> str | None:
    """Return the queue in the spec of a step; None if it cannot be read, which the sweep reports."""
    try:
        return str(json.loads(spec).get("queue", USUAL_QUEUES[0]))
    except (ValueError, AttributeError, RecursionError):
        return None


def _fields(redis: Redis, places: Sequence[tuple[str, str]]) -> list[str | None]:
    """Return fields of hashes; None for one that does not exist, or lies in a key of another type."""
    replies = ask_apart(redis, places, lambda pipe, place: pipe.hget(*place))
    return [None if isinstance(reply, ResponseError) else reply for reply in replies]


def _is_readable(lease: str) -> bool:
    """Return whether an entry is a lease; the sweep reports others."""
    return lease.count("|") >= 3


def _leased(lease: str) -> tuple[str, str]:
    run_id, _, _, step_id = lease.split("|", 3)
    return run_id, step_id


def _worker_of(lease: str) -> str:
    """Return the announced name of the worker with this lease: an owner is that, `#pid`, `~start`, `~call`."""
    return owner_of(lease.split("|", 3)[2]).rpartition("#")[0]
