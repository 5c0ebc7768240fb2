"""The registry of workers: each announces itself every second or two, with the queues it serves.

The process that sweeps reads them all, and publishes what the others need of them: their capacity.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Literal, cast

from pydantic import Field
from redis import Redis
from redis.exceptions import ResponseError

from cantata.engine.fleet.holds import DRAINS_KEY, PausedQueue, paused
from cantata.errors import StoredDataError
from cantata.ledger.redis import clock
from cantata.ledger.redis.cluster import Cluster
from cantata.ledger.redis.keys import key_of
from cantata.ledger.redis.records import readable
from cantata.settings import settings
from cantata.values import Unreadable, Value, stored

CAPACITY_KEY = "capacity"  # string: {workers, slots: {queue: slots}, since: without a break} (JSON); expires with the process that sweeps
WORKERS_KEY = (
    "workers"  # hash: name -> Worker (JSON); an entry older than STALE_S counts for nothing, and is kept for KEPT_S
)
STALE_S = 5.0
KEPT_S = 600.0  # of a worker that did not say that it ends: for so long it is shown as lost
SETTLED_S = 5  # after a restart or a failover of Redis, clients need a moment to reconnect
MAX_CODE = 50  # modules of user code that a worker announces
CLOCK_OFF_S = 5.0  # a clock that is further off causes a warning; nothing here depends on it
CALLS_A_SECOND = 200  # of one sort, by all workers together: in a larger fleet each calls less often
MAX_INTERVAL_S = 5.0

_workers = 0  # of the fleet, as last read by this process


SERVED_BY = {"webhooks": "agents"}
"""Queues that the workers of another queue serve too."""


WorkerState = Literal["serving", "draining", "drained"]


class Worker(Value):
    """A worker process that serves queues."""

    name: str
    queues: tuple[str, ...]
    concurrency: int = Field(description="steps it does at once, without those of the queues beside")
    beside: dict[str, int] = Field(
        default_factory=dict, description="queues that it serves with slots of their own: queue -> slots"
    )
    pid: int
    host: str
    version: str
    started_at: float
    seen_at: float = Field(default=0.0, description="Redis's clock, seconds")
    clock_off_s: float = Field(default=0.0, description="how far its machine's clock is ahead of Redis's, seconds")
    metrics_url: str = Field(default="", description="where it shows its metrics, if it does")
    app: str = Field(
        default="",
        description="the Celery application of the user's that it was started with, such as `shop.celery:app`",
    )
    event_exchange: str = Field(default="", description="the exchange to which it publishes task events")
    code: tuple[str, ...] = Field(default=(), description="the modules of user code it serves, as `module@digest`")
    code_faults: dict[str, str] = Field(
        default_factory=dict, description="modules of user code that it cannot import: name -> why"
    )
    duplicate: str = Field(
        default="", description="another live process of the same name, if there is one: both count as one"
    )
    state: WorkerState = Field(
        default="serving", description="draining: it takes no more work, and finishes its steps; drained: it has none"
    )
    drained_since: float | None = Field(default=None, description="when somebody drained it, Redis's clock, seconds")
    drained_by: str = Field(default="", description="who did")
    held: tuple[str, ...] = Field(
        default=(), description="queues of which it begins nothing now: paused ones, and its own if it is drained"
    )
    unreadable: Unreadable = ""

    @property
    def serving(self) -> tuple[str, ...]:
        """The queues that it takes work from, or would but for a pause: none if it is drained."""
        return self.queues if self.state == "serving" else ()

    def slots_of(self, queue: str) -> int:
        """Return how many steps of one of its queues it can execute at once."""
        return self.beside.get(queue, self.concurrency)


def interval_s(usual_s: float, most_s: float = MAX_INTERVAL_S) -> float:
    """Return the time between two calls that each worker makes: `usual_s`, and longer in a large fleet."""
    return min(most_s, max(usual_s, _workers / CALLS_A_SECOND))


def announce(redis: Redis, worker: Worker) -> str:
    """Record that a worker is alive, at the time that was last synchronized; return the other live process of the same name, or ""."""
    key, since = key_of(redis, WORKERS_KEY), time.time()
    seen = {"seen_at": clock.now(), "clock_off_s": round(clock.off_s(), 3)}
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.hget(key, worker.name)
        pipe.hset(key, worker.name, worker.model_copy(update=seen).model_dump_json())
        pipe.get(key_of(redis, CAPACITY_KEY))
        at, before, _, capacity = pipe.execute()
    now = clock.note(at, since)
    _note_capacity(capacity)
    with suppress(ValueError):
        other = Worker.model_validate_json(before or "", extra="ignore")
        if other.seen_at >= now - STALE_S and (other.pid, other.started_at) != (worker.pid, worker.started_at):
            return f"process {other.pid} of {other.host}"
    return ""


def retire(redis: Redis, name: str) -> None:
    """Remove a worker that ends."""
    redis.hdel(key_of(redis, WORKERS_KEY), name)
    with suppress(ResponseError):
        redis.hdel(key_of(redis, DRAINS_KEY), name)


def workers(redis: Redis) -> list[Worker]:
    """Return the workers that were alive within the last STALE_S. One that cannot be read serves no queue, as far as this process knows."""
    now, known = entries(redis)
    return sorted((worker for worker in known if worker.seen_at >= now - STALE_S), key=lambda worker: worker.name)


def entries(redis: Redis) -> tuple[float, list[Worker]]:
    """Return Redis's time, and all entries of the last KEPT_S: also those of workers that gave no sign of life since."""
    now = clock.synchronize(redis)
    texts = cast("dict[str, str]", redis.hgetall(key_of(redis, WORKERS_KEY)))
    known = [
        _worker(name, text, now, remove=f"HDEL {key_of(redis, WORKERS_KEY)} {name}") for name, text in texts.items()
    ]
    old = [worker.name for worker in known if worker.seen_at < now - KEPT_S]
    if old:
        with suppress(ResponseError):  # a Redis that takes no writes now still lists the workers
            redis.hdel(key_of(redis, WORKERS_KEY), *old)
            redis.hdel(key_of(redis, DRAINS_KEY), *old)
    return now, [worker for worker in known if worker.seen_at >= now - KEPT_S]


def is_settled(redis: Redis) -> bool:
    """Return whether workers could announce themselves for so long that every one that lives has done so: one sweeps, without a break.

    A break of more than STALE_S is a restart, a failover or a refusal of Redis, or the loss of all workers.
    """
    since = _published(redis.get(key_of(redis, CAPACITY_KEY))).get("since")
    return isinstance(since, float) and clock.now() - since > 2 * SETTLED_S + MAX_INTERVAL_S


def _worker(name: str, text: str, now: float, *, remove: str) -> Worker:
    def row(why: str) -> Worker:
        return Worker(
            name=name, queues=(), concurrency=0, pid=0, host="", version="", started_at=0.0, seen_at=now, unreadable=why
        )

    def read() -> Worker:
        worker = stored(Worker, text, ignores_unknown=True)
        if worker.seen_at > now + 12 * STALE_S:
            raise StoredDataError("it was alive at a time to come")
        return worker

    return readable(
        read, row, remedy=f"upgrade this process if the worker is newer, or remove the entry with redis-cli {remove}"
    )


def slots(redis: Redis) -> dict[str, int]:
    """Return how many steps of each queue the fleet can execute at once."""
    return _slots_of(workers(redis))


def publish_capacity(redis: Redis) -> None:
    """Publish the number of workers, and their slots, for as long as a worker counts without being seen."""
    fleet = workers(redis)
    key = key_of(redis, CAPACITY_KEY)
    since = _published(redis.get(key)).get("since", clock.now())
    capacity = {"workers": len(fleet), "slots": _slots_of(fleet), "since": since}
    redis.set(key, json.dumps(capacity), px=int(STALE_S * 1000))


def published_slots(redis: Redis) -> dict[str, int]:
    """Return the slots as last published, or those of the registry if nobody sweeps. Synchronizes the clock."""
    since = time.time()
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.get(key_of(redis, CAPACITY_KEY))
        at, capacity = pipe.execute()
    clock.note(at, since)
    found = _note_capacity(capacity)
    return slots(redis) if found is None else found


def _note_capacity(text: str | None) -> dict[str, int] | None:
    """Keep the number of workers that was published, and return the slots; None if nothing is."""
    global _workers
    capacity = _published(text)
    _workers = capacity.get("workers", _workers)
    return cast("dict[str, int] | None", capacity.get("slots"))


def _published(text: str | bytes | None) -> dict[str, Any]:
    """Return the capacity as it was published; empty if it cannot be read: whoever sweeps writes it again within a second."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def worker_with(redis: Redis, module: str, queue: str, *, but: str, other_than: Collection[str] = ()) -> str:
    """Return a worker of the queue, other than `but`, that serves a module of user code and can import it; "" if there is none.

    It serves another version than those of `other_than`, as `module@digest`.
    """
    others = (
        each for each in workers(redis) if each.name != but and queue in each.serving and module not in each.code_faults
    )
    return next(
        (
            each.name
            for each in others
            if any(_serves(entry, module) and entry not in other_than for entry in each.code)
        ),
        "",
    )


def _serves(entry: str, module: str) -> bool:
    return entry.rpartition("@")[0] == module


def _slots_of(fleet: Iterable[Worker]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for worker in fleet:
        for queue in worker.serving:
            counts[queue] = counts.get(queue, 0) + worker.slots_of(queue)
    return counts


def warnings_for(redis: Redis, queues: Iterable[str], version: str) -> list[str]:
    """Return warnings for someone who submits a run: queues without workers, clocks that are off, older workers."""
    fleet = workers(redis)
    if not fleet:
        return ["no worker of Cantata is running, so runs wait: start one with `submit worker`"]
    served, stopped = {queue for worker in fleet for queue in worker.serving}, paused(redis)
    found = [paused_message(stopped[queue]) for queue in queues if queue in stopped]
    found += [unserved(queue, fleet) for queue in queues if queue not in served and queue not in stopped]
    return [*found, *fleet_warnings(fleet, version)]


def fleet_warnings(fleet: Iterable[Worker], version: str) -> list[str]:
    """Return warnings about clocks that are off, and about workers older than this version."""
    found = []
    for worker in fleet:
        if abs(worker.clock_off_s) > CLOCK_OFF_S:
            found.append(
                f"the clock of {worker.name} is {worker.clock_off_s:+.0f} s off Redis's; runs are not harmed, but set it"
            )
        if not worker.unreadable and release(worker.version) < release(version):
            found.append(
                f"{worker.name} is of version {worker.version}, older than this one's {version}; restart it with the new one"
            )
    return found


def unserved(queue: str, fleet: Iterable[Worker] = ()) -> str:
    """Return the message about a queue without workers, or whose workers in the fleet are all drained."""
    if drained := [worker for worker in fleet if queue in worker.queues and worker.state != "serving"]:
        first = drained[0]
        by = f" by {first.drained_by}" if first.drained_by else ""
        others = f" and {len(drained) - 1} more are" if len(drained) > 1 else " is"
        return (
            f"no worker serves queue {queue!r}, since {first.name}{others} drained{by}: "
            f"let one take work again with `submit workers undrain {first.name}`"
        )
    command = "submit worker --app MODULE:APP" if queue == "tasks" else f"submit worker {SERVED_BY.get(queue, queue)}"
    if settings().app and queue in (
        "coordinator",
        "agents",
        "tools",
        "tasks",
    ):  # it serves them all, for the application
        command = "submit worker"
    return f"no worker serves queue {queue!r}: start one with `{command}`"


def paused_message(pause: PausedQueue) -> str:
    """Return the message about a paused queue."""
    return f"queue {pause.queue!r} {pause.describe()}: resume it with `submit queues resume {pause.queue}`"


def release(version: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparison."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def connected(redis: Redis, key: str) -> set[str] | None:
    """Return the names of the fleet's connections to the node of a key; None if they prove nothing now.

    Where all connections are young, Redis has just started, or become the master, and live processes may not have reconnected yet.
    """
    try:
        clients = redis.ask_node_of(key, "CLIENT LIST") if isinstance(redis, Cluster) else redis.client_list()
    except ResponseError:  # not every managed Redis lets its clients be listed
        return None  # leases still run out
    prefix = key_of(redis, "")
    ours = [client for client in clients if client["name"].startswith(prefix)]
    if all(int(client["age"]) < SETTLED_S for client in ours):
        return None
    return {client["name"].removeprefix(prefix) for client in ours}
