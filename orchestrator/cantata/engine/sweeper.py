"""The sweeper: recovers lost steps, fires timers and schedules, and expires runs, in all shards of the nodes whose lock it holds."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import structlog

from cantata.engine.dispatch.celery_app import App
from cantata.engine.fleet import load, memory, registry
from cantata.engine.fleet.lost_workers import lost_workers
from cantata.engine.isolation import are_outages, log_once
from cantata.ledger.intervals import SWEEP_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import owner_of
from cantata.ledger.redis import clock, outages
from cantata.ledger.redis.keys import shard_key

log = structlog.get_logger(__name__)

SWEEP_LOCK = (
    "sweep"  # string, of a node's first shard: the name of the process that sweeps the node; expires when it dies
)
SWEEP_LOCK_MS = 2000
MAX_NODES = 64  # each shard may lie on its own
NODE_S = 1.0  # before the sweep goes on without a node that does not answer
RENEWAL_GRACE_S = (
    1.5  # after Redis was away, before its leases count as run out: longer than the pause between two attempts to renew
)
SILENT_S = 1.5  # longer than a renewal: an owner that has renewed no lease for so long, and has no connection, is dead
CAPACITY_INTERVAL_S = 1.0  # between publications of the fleet's capacity
LOST_WORKERS_S = 10.0  # between two looks for workers that were lost


class Sweeper(threading.Thread):
    """Sweeps the shards of each node whose lock this process holds; another takes over within seconds of its death.

    The nodes of a Redis Cluster are swept concurrently: one that cannot be reached does not delay the others.
    """

    def __init__(
        self,
        app: App,
        ledger: Ledger,
        name: str,
        sweep: Callable[[App, Ledger, Sequence[int]], bool],
        *,
        every_s: float = SWEEP_S,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """Create a sweeper.

        `sweep` does all duties for some shards, and returns whether it could.
        `pause` is called with the seconds until the next sweep: `every_s`, or more if another process sweeps. It may return early; by
        default only `stop` ends it.
        """
        super().__init__(name="sweeper", daemon=True)
        self._app = app
        self._ledger = ledger
        self._owner = name
        self._sweep = sweep
        self._every_s = every_s
        self._ended = threading.Event()
        self._pause = pause or self._ended.wait
        self._nodes: dict[str, _Node] = defaultdict(_Node)
        self._under_way: dict[str, Future[bool]] = {}
        self._publishes_at = self._samples_at = self._looks_at = 0.0
        self._lost: frozenset[tuple[str, float]] = frozenset()

    def run(self) -> None:
        """Sweep until stopped; a failure is logged and the next round tries again."""
        pool = ThreadPoolExecutor(MAX_NODES, "sweep")
        while not (self._pause(self._pause_s()) or self._ended.is_set()):
            try:
                self._sweep_all(pool)
            except BaseException as error:  # noqa: BLE001  # the edge of a thread: without it no lost work would be recovered any more
                if not self._ended.is_set():  # a process that ends takes no new work
                    _log_failure(error)
        pool.shutdown()

    def stop(self) -> None:
        """Stop, and let another process sweep."""
        self._ended.set()

    def _pause_s(self) -> float:
        """Return the time until the next attempt to sweep: the more workers try to take a lock, the less often each does."""
        return (
            self._every_s
            if any(node.is_ours for node in list(self._nodes.values()))
            else registry.interval_s(self._every_s)
        )

    def _sweep_all(self, pool: ThreadPoolExecutor) -> None:
        """Sweep each node, except those whose last sweep has not returned."""
        nodes = self._ledger.caller.nodes()
        for node, shards in nodes.items():
            if node not in self._under_way:
                self._under_way[node] = pool.submit(self._sweep_node, node, shards)
        wait(self._under_way.values(), timeout=NODE_S)
        done = {node: future for node, future in self._under_way.items() if future.done()}
        self._under_way = {node: future for node, future in self._under_way.items() if node not in done}
        swept = {node for node, future in done.items() if future.result()}
        if swept == nodes.keys():
            load.record_sweep(self._ledger.redis)
        has_first = any(self._nodes[node].is_ours for node, shards in nodes.items() if 0 in shards)
        if has_first and time.monotonic() >= self._publishes_at:
            self._publishes_at = time.monotonic() + CAPACITY_INTERVAL_S
            registry.publish_capacity(self._ledger.redis)
            if time.monotonic() >= self._samples_at:
                self._samples_at = time.monotonic() + memory.EVERY_S
                memory.take_sample(self._ledger.redis)
            if time.monotonic() >= self._looks_at:
                self._looks_at = time.monotonic() + LOST_WORKERS_S
                self._log_lost_workers()

    def _log_lost_workers(self) -> None:
        """Log workers that were lost since the last look."""
        lost = lost_workers(self._ledger.redis)
        for each in lost:
            if (each.name, each.seen_at) not in self._lost and clock.now() - each.seen_at < 3 * LOST_WORKERS_S:
                log.warning("worker_lost", name=each.name, queues=each.queues, host=each.host, steps=each.steps)
        self._lost = frozenset((each.name, each.seen_at) for each in lost)

    def _sweep_node(self, node: str, shards: Sequence[int]) -> bool:
        """Sweep the shards of a node; return whether this process swept all of them."""
        try:
            if not self._holds_lock(self._nodes[node], shards):
                return False
            try:
                self._expire_dead_leases(shards)
            except Exception as error:  # noqa: BLE001  # leases still run out, and the sweep does not depend on it
                _log_failure(error)
            return time.monotonic() >= self._nodes[node].sweeps_from and self._sweep(self._app, self._ledger, shards)
        except BaseException as error:  # noqa: BLE001  # the edge of a thread; the next sweep of this node is another call
            _log_failure(error, **({"node": node} if node else {}))
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
        dead = {_owner(lease) for lease in leases} - connected - {""}
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
    """Return the process that holds a lease; "" for an entry that is none."""
    parts = lease.split("|", 3)
    return owner_of(parts[2]) if len(parts) > 3 else ""


def _log_failure(error: BaseException, **fields: str) -> None:
    """Log why nothing was swept: an outage every few seconds, anything else once."""
    if are_outages(error):
        outages.warn(log, "sweep_failed", error, **fields)
    else:
        log_once("sweep_crashed", error, **fields)
