"""The sweeper: recovers lost steps, fires timers and schedules, and expires runs, in all shards of the nodes whose lock it holds."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

import structlog
from kombu.exceptions import OperationalError

from cantata import fault_points
from cantata.coordinator import permit_wakeups
from cantata.coordinator.firing import fire_due
from cantata.coordinator.start import send_ready
from cantata.dispatch.celery_app import App
from cantata.dispatch.queues import heads_sent_at
from cantata.dispatch.user_app import TASKS
from cantata.errors import CantataError
from cantata.observability import traces
from cantata.state.fleet import load, registry
from cantata.state.ledger.intervals import SWEEP_S
from cantata.state.ledger.ledger import Ledger
from cantata.state.ledger.records import Overdue, Swept, owner_of
from cantata.state.limits.limiter import Limiter
from cantata.state.redis import clock, outages
from cantata.state.redis.connection import RedisFailure
from cantata.state.redis.keys import SHARDS, shard_key
from cantata.state.runs import trace_roots

log = structlog.get_logger(__name__)

TASK_CHECK = "task.check"  # the Celery task that looks for results of the user's tasks
CHECKED_AT_ONCE = 500  # tasks, in one message
SWEEP_LOCK = "sweep"  # string, of a node's first shard: the name of the process that sweeps the node; expires when it dies
SWEEP_LOCK_MS = 2000
MAX_NODES = 64  # each shard may lie on its own
NODE_S = 1.0  # before the sweep goes on without a node that does not answer
RENEWAL_GRACE_S = 1.5  # after Redis was away, before its leases count as run out: longer than the pause between two attempts to renew
CLOCK_SPREAD_S = 2.0  # between marking a step as sent and sending it, clock differences between machines included
SENT_AT_ONCE = 500  # lost messages: few enough to send right after checking that each is still needed
SILENT_S = 1.5  # longer than a renewal: an owner that has renewed no lease for so long, and has no connection, is dead
CAPACITY_INTERVAL_S = 1.0  # between publications of the fleet's capacity


class Sweeper(threading.Thread):
    """Sweeps the shards of each node whose lock this process holds; another takes over within seconds of its death.

    The nodes of a Redis Cluster are swept concurrently: one that cannot be reached does not delay the others.
    """

    def __init__(
        self, app: App, ledger: Ledger, name: str, *, every_s: float = SWEEP_S, pause: Callable[[float], object] | None = None
    ) -> None:
        """Create a sweeper.

        `pause` is called with the seconds until the next sweep: `every_s`, or more if another process sweeps. It may return early; by
        default only `stop` ends it.
        """
        super().__init__(name="sweeper", daemon=True)
        self._app = app
        self._ledger = ledger
        self._owner = name
        self._every_s = every_s
        self._ended = threading.Event()
        self._pause = pause or self._ended.wait
        self._nodes: dict[str, _Node] = defaultdict(_Node)
        self._under_way: dict[str, Future[bool]] = {}
        self._publishes_at = 0.0

    def run(self) -> None:
        """Sweep until stopped; a failure is logged and the next round tries again."""
        pool = ThreadPoolExecutor(MAX_NODES, "sweep")
        while not (self._pause(self._pause_s()) or self._ended.is_set()):
            try:
                self._sweep_all(pool)
            except (CantataError, RedisFailure, OSError) as error:
                outages.warn(log, "sweep_failed", error)
            except Exception:  # the edge of a thread: without it no lost work would be recovered any more
                if not self._ended.is_set():  # a process that ends takes no new work
                    log.exception("sweep_crashed")
        pool.shutdown()

    def stop(self) -> None:
        """Stop, and let another process sweep."""
        self._ended.set()

    def _pause_s(self) -> float:
        """Return the time until the next attempt to sweep: the more workers try to take a lock, the less often each does."""
        return self._every_s if any(node.is_ours for node in list(self._nodes.values())) else registry.interval_s(self._every_s)

    def _sweep_all(self, pool: ThreadPoolExecutor) -> None:
        """Sweep each node, except those whose last sweep has not returned."""
        nodes = self._ledger.caller.nodes()
        for node, shards in nodes.items():
            if node not in self._under_way:
                self._under_way[node] = pool.submit(self._sweep_node, node, shards)
        done, _ = wait(self._under_way.values(), timeout=NODE_S)
        swept = [node for node, future in self._under_way.items() if future in done and future.result()]
        self._under_way = {node: future for node, future in self._under_way.items() if future not in done}
        if set(swept) == nodes.keys():
            load.record_sweep(self._ledger.redis)
        has_first = any(self._nodes[node].is_ours for node, shards in nodes.items() if 0 in shards)
        if has_first and time.monotonic() >= self._publishes_at:
            self._publishes_at = time.monotonic() + CAPACITY_INTERVAL_S
            registry.publish_capacity(self._ledger.redis)

    def _sweep_node(self, node: str, shards: Sequence[int]) -> bool:
        """Sweep the shards of a node; return whether this process swept all of them."""
        try:
            if not self._holds_lock(self._nodes[node], shards):
                return False
            self._expire_dead_leases(shards)
            return time.monotonic() >= self._nodes[node].sweeps_from and sweep_once(self._app, self._ledger, shards)
        except (CantataError, RedisFailure, OSError) as error:
            outages.warn(log, "sweep_failed", error, **({"node": node} if node else {}))
            return False

    def _expire_dead_leases(self, shards: Sequence[int]) -> None:
        """Expire the leases of killed processes, known by their connections, which the kernel closes at once.

        A live process reconnects when it next renews, so only leases that were not renewed for longer than that are looked at. A Redis that
        has just started proves nothing, nor does a client list with only this process, as a proxy gives. A frozen process and a lost host
        keep their leases to the end.
        """
        leases = self._ledger.leases.names(shards, silent_s=SILENT_S)
        connected = registry.connected(self._ledger.redis, shard_key(self._ledger.redis, shards[0])) if leases else None
        if connected is None or all(name.startswith(self._owner) for name in connected):
            return
        dead = {_owner(lease) for lease in leases} - connected
        if dead:
            log.info("owners_disconnected", owners=sorted(dead))
            self._ledger.leases.expire(lease for lease in leases if _owner(lease) in dead)

    def _holds_lock(self, node: _Node, shards: Sequence[int]) -> bool:
        """Return whether this process holds the lock of a node. Sweeps wait after it was taken: owners renew first if Redis was away."""
        redis = self._ledger.redis
        lock = f"{shard_key(redis, shards[0])}:{SWEEP_LOCK}"
        owner = redis.set(lock, self._owner, nx=True, get=True, px=SWEEP_LOCK_MS)
        node.is_ours = owner in (None, self._owner)
        if owner is None:
            node.sweeps_from = time.monotonic() + (RENEWAL_GRACE_S if self._ledger.leases.names(shards) else 0.0)
        elif node.is_ours:
            redis.pexpire(lock, SWEEP_LOCK_MS)
        return node.is_ours


@dataclass(slots=True)
class _Node:
    """The state of a node between sweeps."""

    is_ours: bool = False
    """This process has its lock."""
    sweeps_from: float = 0.0


def _owner(lease: str) -> str:
    return owner_of(lease.split("|")[2])


def sweep_once(app: App, ledger: Ledger, shards: Sequence[int] = range(SHARDS)) -> bool:
    """Sweep some shards and send what is due; return whether all of them, and the rate limits, were swept.

    Steps that are known to be due are sent before the broker is asked about messages that may be lost.
    """
    since = clock.now()
    found = ledger.leases.sweep_all(shards)
    for swept in found:
        fault_points.at("swept")
        if swept.fired:
            fault_points.at("timer-fired")
        if swept.lost:
            log.info("leases_lost", count=swept.lost)
        if swept.fault:
            log.error("shard_sweep_failed", error=swept.fault)
    send_ready(app, (ready for swept in found for ready in swept.sends), sent_at=since)
    fire_due(app, ledger, [schedule for swept in found for schedule in swept.schedules])
    _check_tasks(app, ledger, found)
    is_asked = _sweep_permits(app, ledger, found, since, always=0 in shards)
    for run_id in (run_id for swept in found for run_id in swept.ended):
        _log_end(ledger, run_id)
    _send_lost(app, ledger, [step for swept in found for step in swept.overdue])
    return is_asked and not any(swept.fault for swept in found)


def _check_tasks(app: App, ledger: Ledger, found: Sequence[Swept]) -> None:
    """Have a worker look for the results of dispatched steps, and revoke tasks; without a worker they are left to expire."""
    tasks, revoked = [name for swept in found for name in swept.tasks], [name for swept in found for name in swept.revoked]
    if (tasks or revoked) and TASKS in registry.slots(ledger.redis):
        try:
            for start in range(0, max(len(tasks), len(revoked)), CHECKED_AT_ONCE):
                part = slice(start, start + CHECKED_AT_ONCE)
                app.send_task(TASK_CHECK, args=(tasks[part], revoked[part]), queue=app.broker_queue(TASKS))
        except (OperationalError, RedisFailure) as error:
            log.warning("dispatch_failed", tasks=len(tasks), revoked=len(revoked), error=str(error))


def _sweep_permits(app: App, ledger: Ledger, found: Sequence[Swept], since: float, *, always: bool) -> bool:
    """Send the steps whose rate limits now have room; return False if the limits cannot be read, which stops nothing else.

    Of several sweepers, that of the first shard does it `always`.
    """
    waiting, left = [ticket for swept in found for ticket in swept.waiting], [ticket for swept in found for ticket in swept.left]
    try:
        if always or waiting or left:
            send_ready(app, permit_wakeups.sweep(ledger, Limiter(ledger), waiting, left), sent_at=since)
    except (CantataError, RedisFailure) as error:  # in a Redis Cluster they may lie on a node that is unavailable
        outages.warn(log, "permit_sweep_failed", error)
        return False
    return True


def _log_end(ledger: Ledger, run_id: str) -> None:
    """Log the end of a run that a sweep ended: no step of it will."""
    with suppress(CantataError):  # it may be gone by now
        log.info("run_ended", run=run_id, status=ledger.runs.status(run_id))
        trace_roots.end(traces.active(), ledger, run_id)


def _send_lost(app: App, ledger: Ledger, overdue: Sequence[Overdue]) -> None:
    """Send the steps whose message is lost; those whose message is still in its queue are left alone."""
    if not overdue:
        return
    heads = heads_sent_at(app, {(step.queue, step.priority) for step in overdue})
    lost = sorted((step for step in overdue if is_lost(step, heads[step.queue, step.priority])), key=lambda step: step.sent_at)
    for start in range(0, len(lost), SENT_AT_ONCE):
        send_ready(app, ledger.steps.still_waiting(lost[start : start + SENT_AT_ONCE]))
    _note_unserved(ledger, [step for step in overdue if step.is_first_look])


def is_lost(step: Overdue, head_sent_at: float | None) -> bool:
    """Return whether the message of an overdue step is lost, by the time the head of its queue was sent; None: the queue is empty.

    A queue is first in, first out: if the message at its head was sent after ours, ours is gone (or a busy worker has it, and then a
    second one does no harm).
    """
    return head_sent_at is None or head_sent_at > step.sent_at + CLOCK_SPREAD_S


def _note_unserved(ledger: Ledger, overdue: Iterable[Overdue]) -> None:
    """Append an event about each queue without workers to the runs that need it, once for all overdue steps of a run."""
    by_queue = {(step.run_id, step.queue): step.step_id for step in overdue}
    served = registry.slots(ledger.redis) if by_queue else {}
    notes = [
        (run_id, step_id, {"queue": queue, "message": registry.unserved(queue)})
        for (run_id, queue), step_id in by_queue.items() if queue not in served
    ]  # fmt: skip
    if notes:
        ledger.runs.append_events("unserved", notes)
