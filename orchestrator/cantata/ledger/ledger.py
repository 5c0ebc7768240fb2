"""The ledger: runs, steps and leases in Redis, each promise one Lua script.

A run is accepted once, a step begins only if the ledger says so, an outcome is recorded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from redis import Redis

from cantata.ledger.intervals import LEASE_S
from cantata.ledger.lease_store import LeaseStore
from cantata.ledger.outbox import Outbox
from cantata.ledger.parked import ParkedStore
from cantata.ledger.quotas import Quotas
from cantata.ledger.run_reader import RunReader
from cantata.ledger.run_store import RunStore
from cantata.ledger.scripts import ScriptCaller
from cantata.ledger.step_store import StepStore

Reply = TypeVar("Reply")


class Ledger:
    """The run store in Redis. Safe to share between threads; every call may be repeated."""

    def __init__(
        self, redis: Redis, *, patience_s: float = 30.0, lease_s: float = LEASE_S, replicas: int = 0, sends: bool = True
    ) -> None:
        """Open the ledger of a namespace.

        Args:
            patience_s: How long calls are retried while Redis is unavailable.
            replicas: The number of replicas that must have what a call promised. Raises ConfigError for a cluster.
            sends: False if this process sends no message: what it makes ready is sent by the next sweep.
        """
        caller = ScriptCaller(redis, patience_s=patience_s, replicas=replicas, sends=sends)
        self.redis = redis
        self.runs = RunStore(caller)
        self.steps = StepStore(caller, lease_s=lease_s)
        self.leases = LeaseStore(caller, lease_s=lease_s)
        self.outbox = Outbox(caller)
        self.reader = RunReader(caller)
        self.parked = ParkedStore(caller)
        self.caller = caller
        self.quotas = Quotas(caller)

    def with_retries(self, call: Callable[[], Reply]) -> Reply:
        """Call Redis, repeatedly while it is unavailable, for `patience_s` in all. Raises UnavailableError after that."""
        return self.caller.with_retries(call)
