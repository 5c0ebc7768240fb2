"""Refuses new runs of a tenant that has used up a quota, and of everybody while Redis is nearly full. Runs under way go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import cast

from orchestrator.errors import ConfigError, UnavailableError
from orchestrator.models.definitions import Quota
from orchestrator.state.cluster import Cluster
from orchestrator.state.keys import SHARDS, shard_key
from orchestrator.state.ledger import Ledger

FULL = 0.9  # of maxmemory: what is left is for the runs under way
FRESH_S = 1.0  # how long it counts what Redis said of its memory
QUOTA_CODE = "quota_exceeded"


class Quotas:
    """What the tenants of a Redis have now. A tenant's runs lie in all shards, which one script cannot count: a burst may pass by a few."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._memory: list[Mapping[str, int]] = []
        self._asked_at = -FRESH_S

    def check(self, tenant: str, quota: Quota) -> None:
        """Raise ConfigError ('quota_exceeded') if this tenant may have no new run now, UnavailableError if nobody may."""
        self._check_memory()
        if quota.open_runs is not None:
            open_runs = self._sum("tenants", tenant)
            if open_runs >= quota.open_runs:
                raise _exceeded(
                    tenant, "open_runs", f"{open_runs:,} of {quota.open_runs:,} runs are open", "wait until some end, or cancel some"
                )
        if quota.kept_bytes is not None:
            kept = self._sum("bytes", tenant)
            if kept >= quota.kept_bytes:
                message = f"its runs keep {kept:,} of {quota.kept_bytes:,} bytes"
                raise _exceeded(tenant, "kept_bytes", message, "wait until finished runs expire, or shorten defaults.retention_s")

    def _sum(self, part: str, tenant: str) -> int:
        def fetch() -> list[str | None]:
            with self._ledger.redis.pipeline(transaction=False) as pipe:
                for shard in range(SHARDS):
                    pipe.hget(f"{shard_key(self._ledger.redis, shard)}:{part}", tenant)
                return cast("list[str | None]", pipe.execute())

        return sum(int(count or 0) for count in self._ledger.patiently(fetch))

    def _check_memory(self) -> None:
        if time.monotonic() - self._asked_at >= FRESH_S:
            self._memory = self._ledger.patiently(self._ask_memory)
            self._asked_at = time.monotonic()
        for node in self._memory:
            used, limit = int(node["used_memory"]), int(node.get("maxmemory", 0))
            if limit and used >= FULL * limit:
                said = f"Redis is nearly full ({used / 1e6:,.0f} of {limit / 1e6:,.0f} MB of its maxmemory), so no new runs are taken in"
                todo = "raise its maxmemory, shorten the retention of runs, or try again when some have expired"
                raise UnavailableError(f"{said}; those under way go on; {todo}")

    def _ask_memory(self) -> list[Mapping[str, int]]:
        redis = self._ledger.redis
        if isinstance(redis, Cluster):
            return [cast("Mapping[str, int]", node) for node in redis.each_node("INFO", "memory").values()]
        return [cast("Mapping[str, int]", redis.info("memory"))]


def _exceeded(tenant: str, name: str, message: str, action: str) -> ConfigError:
    return ConfigError(f"tenant {tenant!r} has used up its quota limits.quotas {name}: {message}; {action}", code=QUOTA_CODE)
