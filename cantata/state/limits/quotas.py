"""Quotas of tenants: new runs are refused beyond them, and for all tenants while Redis is nearly full. Open runs go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from cantata.errors import ConfigError, UnavailableError
from cantata.models.definitions import Limits, Quota
from cantata.state.ledger.ledger import Ledger
from cantata.state.redis.cluster import memory_of
from cantata.state.redis.keys import run_key
from cantata.state.redis.pieces import ask_shards

FULL = 0.9  # of maxmemory: the rest is for the open runs
FRESH_S = 1.0  # how long a reading of Redis's memory is reused
QUOTA_CODE = "quota_exceeded"


class Quotas:
    """Checks of quotas. A tenant's runs lie in all shards, which one script cannot count, so a burst may exceed a quota by a few."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._memory: Sequence[Mapping[str, int]] = ()
        self._asked_at = -FRESH_S

    def check(self, tenant: str, quota: Quota) -> int | None:
        """Return the number of runs that a tenant may start now; None for any.

        Raises ConfigError ('quota_exceeded') if it may start none, UnavailableError if Redis is nearly full.
        """
        self._check_memory()
        left = None
        if quota.open_runs is not None:
            open_runs = self._sum("tenants", tenant)
            if open_runs >= quota.open_runs:
                raise _exceeded(
                    tenant, "open_runs", f"{open_runs:,} of {quota.open_runs:,} runs are open", "wait until some end, or cancel some"
                )
            left = quota.open_runs - open_runs
        self._check_bytes(tenant, "kept_bytes", quota.kept_bytes, "bytes", "bytes")
        self._check_bytes(tenant, "log_bytes", quota.log_bytes, "log_bytes", "bytes of log lines")
        return left

    def early_signal_refusal(self, run_id: str, limits: Limits) -> ConfigError | None:
        """Return an error if the tenant of a run has used up its quota of early signals, else None."""
        if not limits.quotas:
            return None
        tenant = str(self._ledger.with_retries(lambda: self._ledger.redis.hget(run_key(self._ledger.redis, run_id), "tenant")) or "")
        most = limits.quota_of(tenant).early_signals
        if most is None or (kept := self._sum("signals", tenant)) < most:
            return None
        message = f"its open runs keep {kept:,} of {most:,} signals for steps that do not wait yet"
        return _exceeded(tenant, "early_signals", message, "send it when the step waits")

    def _check_bytes(self, tenant: str, name: str, most: int | None, part: str, unit: str) -> None:
        if most is not None and (kept := self._sum(part, tenant)) >= most:
            message = f"its runs keep {kept:,} of {most:,} {unit}"
            raise _exceeded(tenant, name, message, "wait until finished runs expire, or shorten defaults.retention_s")

    def _sum(self, part: str, tenant: str) -> int:
        counts = self._ledger.with_retries(lambda: ask_shards(self._ledger.redis, lambda pipe, key: pipe.hget(f"{key}:{part}", tenant)))
        return sum(int(count or 0) for count in counts)

    def _check_memory(self) -> None:
        if time.monotonic() - self._asked_at >= FRESH_S:
            self._memory = self._ledger.with_retries(lambda: memory_of(self._ledger.redis))
            self._asked_at = time.monotonic()
        for node in self._memory:
            used, limit = int(node["used_memory"]), int(node.get("maxmemory", 0))
            if limit and used >= FULL * limit:
                fault = f"Redis is nearly full ({used / 1e6:,.0f} of {limit / 1e6:,.0f} MB of its maxmemory), so no new runs are accepted"
                action = "raise its maxmemory, shorten the retention of runs, or retry when some have expired"
                raise UnavailableError(f"{fault}; open runs go on; {action}")


def _exceeded(tenant: str, name: str, message: str, action: str) -> ConfigError:
    return ConfigError(f"tenant {tenant!r} has used up its quota limits.quotas {name}: {message}; {action}", code=QUOTA_CODE)
