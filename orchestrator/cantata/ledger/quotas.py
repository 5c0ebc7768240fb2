"""Quotas of tenants: new runs and whatever else a tenant stores are refused beyond them, and while Redis is nearly full. Open runs go on.

`charges.lua` counts what a tenant keeps, and lists the keys; `memory/lib.lua` does so for memories.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from cantata.errors import ConfigError, UnavailableError
from cantata.flows.definitions import Quota
from cantata.ledger.redis.cluster import memory_of
from cantata.ledger.redis.keys import memory_key, run_key, shard_key
from cantata.ledger.redis.pieces import ask_shards
from cantata.ledger.scripts import SCRIPTS, ScriptCaller

FULL = 0.9  # of maxmemory: the rest is for the open runs
MAX_TENANTS = 1000  # that a list names
FRESH_S = 1.0  # how long a reading of Redis's memory is reused
QUOTA_CODE = "quota_exceeded"
SMALL_SIGNAL_BYTES = (
    4096  # an answer of this size to a step that waits is taken beyond any quota: its run must be able to end
)
PARTS = {
    "open_runs": "tenants",
    "kept_bytes": "bytes",
    "log_bytes": "log_bytes",
    "early_signals": "signals",
    "names": "names",
}
"""Quota → the hash of each shard that counts its use by tenant."""


class Room(NamedTuple):
    """The room that a quota leaves; None for any number."""

    runs: int | None
    bytes: int | None


class KeptItem(NamedTuple):
    """A thing that a tenant keeps beside its runs, as `charges.lua` names it."""

    shard: int
    name: str


class Quotas:
    """Checks of quotas, of a ledger (`Ledger.quotas`). Safe to share between threads.

    What a tenant keeps lies in all shards, which one script cannot count, so it is counted before it grows. Each caller of a ledger sees
    the bytes that its other callers are about to store. So a burst exceeds a quota of bytes only by what other processes store in the
    same milliseconds, and the other quotas by the number of callers.
    """

    def __init__(self, caller: ScriptCaller) -> None:
        self._caller = caller
        self._memory: Sequence[Mapping[str, int]] = ()
        self._asked_at = -FRESH_S
        self._coming: Counter[str] = Counter()  # bytes that callers of `store` are about to store
        self._lock = threading.Lock()

    def check(self, tenant: str, quota: Quota, size: int = 0) -> Room:
        """Return how many runs a tenant may start now, the first of which has so many bytes.

        Raises ConfigError ('quota_exceeded') if it may start none, UnavailableError if Redis is nearly full.
        """
        self.check_memory()
        used = self._used(tenant, quota, "open_runs", "kept_bytes", "log_bytes")
        self._check_kept(tenant, quota, used, size)
        if quota.log_bytes is not None and used["log_bytes"] >= quota.log_bytes:
            message = f"its runs keep {used['log_bytes']:,} of {quota.log_bytes:,} bytes of log lines"
            raise exceeded(
                tenant, "log_bytes", message, "wait until finished runs expire, or shorten defaults.retention_s"
            )
        if quota.open_runs is not None and used["open_runs"] >= quota.open_runs:
            message = f"{used['open_runs']:,} of {quota.open_runs:,} runs are open"
            raise exceeded(tenant, "open_runs", message, "wait until some end, or cancel some")
        return Room(
            None if quota.open_runs is None else quota.open_runs - used["open_runs"],
            None if quota.kept_bytes is None else quota.kept_bytes - used["kept_bytes"],
        )

    @contextmanager
    def start(self, tenant: str, quota: Quota, size: int, *, name: KeptItem | None = None) -> Iterator[None]:
        """Let a block start runs whose requests have so many bytes; `name` is that of their session. Raises as `check` and `store`."""
        self.check(tenant, quota)
        with self.store(tenant, quota, size, name=name):
            yield

    @contextmanager
    def store(
        self, tenant: str, quota: Quota, size: int, *, name: KeptItem | None = None, of_run: bool = False
    ) -> Iterator[None]:
        """Let a block store so many bytes of a tenant.

        Args:
            tenant: The tenant, "" for none.
            quota: Its quota.
            size: Bytes of all texts that are stored.
            name: The session, schedule, batch or builder that they belong to, which may be new.
            of_run: Whether an open run stores them, which goes on while Redis is nearly full.

        Raises:
            ConfigError: The quota does not allow it ('quota_exceeded').
            UnavailableError: Redis is nearly full.
        """
        if not of_run:
            self.check_memory()
        if quota.kept_bytes is None and (quota.names is None or name is None):
            yield
            return
        with self._lock:
            self._coming[tenant] += size
        try:
            used = self._used(tenant, quota, "kept_bytes", "names")
            self._check_kept(tenant, quota, used, self._coming[tenant])
            if name and quota.names is not None and used["names"] >= quota.names and not self._is_kept(name):
                message = f"it keeps {used['names']:,} of {quota.names:,} sessions, schedules, batches and builders"
                raise exceeded(
                    tenant, "names", message, "delete some, wait until some expire, or use those that are there"
                )
            yield
        finally:
            with self._lock:
                self._coming[tenant] -= size
                if not self._coming[tenant]:
                    del self._coming[tenant]

    def early_signal_refusal(self, tenant: str, quota: Quota) -> ConfigError | None:
        """Return an error if a tenant has used up its quota of early signals, else None."""
        most = quota.early_signals
        if most is None or (kept := self._used(tenant, quota, "early_signals")["early_signals"]) < most:
            return None
        message = f"its open runs keep {kept:,} of {most:,} signals for steps that do not wait yet"
        return exceeded(tenant, "early_signals", message, "send it when the step waits")

    def tenant_of(self, run_id: str) -> str:
        """Return the tenant of a run, "" for none."""
        return str(
            self._caller.with_retries(lambda: self._caller.redis.hget(run_key(self._caller.redis, run_id), "tenant"))
            or ""
        )

    def tenants(self, most: int) -> tuple[list[str], bool]:
        """Return tenants that keep runs or items, sorted, at most `most`, and whether these are all."""
        replies = self._caller.with_retries(
            lambda: ask_shards(
                self._caller.redis, lambda pipe, key: pipe.hscan(f"{key}:{PARTS['kept_bytes']}", count=most)
            )
        )
        found = {str(tenant) for _, counts in replies for tenant in counts}
        return sorted(found)[:most], len(found) <= most and not any(cursor for cursor, _ in replies)

    def check_memory(self) -> None:
        """Raise UnavailableError if Redis is nearly full."""
        if time.monotonic() - self._asked_at >= FRESH_S:
            self._memory = self._caller.with_retries(lambda: memory_of(self._caller.redis))
            self._asked_at = time.monotonic()
        for node in self._memory:
            used, limit = int(node["used_memory"]), int(node.get("maxmemory", 0))
            if limit and used >= FULL * limit:
                fault = f"Redis is nearly full ({used / 1e6:,.0f} of {limit / 1e6:,.0f} MB of its maxmemory), so no new runs are accepted"
                action = "raise its maxmemory, shorten the retention of runs, or retry when some have expired"
                raise UnavailableError(f"{fault}, and nothing else is stored; open runs go on; {action}")

    def _is_kept(self, item: KeptItem) -> bool:
        """Return whether an item is there already."""
        key, redis = shard_key(self._caller.redis, item.shard), self._caller.redis
        return bool(
            self._caller.with_retries(
                lambda: redis.exists(*(f"{key}:{item.name}{part}" for part in ("", ":queue", ":history")))
            )
        )

    def _check_kept(self, tenant: str, quota: Quota, used: Mapping[str, int], size: int) -> None:
        most = quota.kept_bytes
        if most is None or used["kept_bytes"] + max(size, 1) <= most:
            return
        message = f"it keeps {used['kept_bytes']:,} of {most:,} bytes"
        more = f", and {size:,} more would be stored" if used["kept_bytes"] < most else ""
        action = "delete schedules, memories or conversations, wait until finished runs expire, or shorten defaults.retention_s"
        raise exceeded(tenant, "kept_bytes", f"{message}{more}", action)

    def _used(self, tenant: str, quota: Quota, *names: str) -> Counter[str]:
        """Return what a tenant uses of those of some quotas that are limited."""
        wanted = [name for name in names if getattr(quota, name) is not None]
        if not wanted:
            return Counter()

        def ask(pipe: Any, key: str) -> None:
            for name in wanted:
                pipe.hget(f"{key}:{PARTS[name]}", tenant)

        counts = cast("list[str | None]", self._caller.with_retries(lambda: ask_shards(self._caller.redis, ask)))
        used = Counter(
            {name: sum(int(each or 0) for each in counts[place :: len(wanted)]) for place, name in enumerate(wanted)}
        )
        if "kept_bytes" in wanted:
            key = memory_key(self._caller.redis, tenant)
            used["kept_bytes"] += int(
                self._caller.with_retries(lambda: SCRIPTS.call(self._caller.redis, "memory/kept", key))
            )
        return used


def exceeded(tenant: str, name: str, message: str, action: str, *, source: str = "") -> ConfigError:
    """Return the error for a quota that is used up."""
    text = f"tenant {tenant!r} has used up its quota limits.quotas {name}: {message}; {action}"
    return ConfigError(text, source=source, code=QUOTA_CODE)
