"""Leases of steps: renew and expire them, and sweep the shards for lost work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from cantata import __version__
from cantata.errors import UnavailableError
from cantata.ledger.encoding import swept_of
from cantata.ledger.intervals import RESEND_MS
from cantata.ledger.records import Swept
from cantata.ledger.redis.keys import SHARDS, shard_key, shard_of
from cantata.ledger.redis.pieces import ask_each
from cantata.ledger.redis.redis_errors import is_transient, reason
from cantata.ledger.scripts import ScriptCaller, named

SWEEP_ENTRIES = 200  # of each sort, in one call of a sweep
MAX_SWEEP_S = 1.0  # after which the next sweep does the rest


class LeaseStore:
    """The leases of a ledger, and the sweep of what they lost."""

    def __init__(self, caller: ScriptCaller, *, lease_s: float) -> None:
        self._caller = caller
        self._lease_s = lease_s
        self._lease_ms = str(int(lease_s * 1000))

    def renew(self, leases: Iterable[str]) -> set[str]:
        """Renew leases; return those that are lost, because a sweep or the end of the run took them."""
        by_shard: dict[int, list[str]] = {}
        for lease in leases:
            by_shard.setdefault(shard_of(lease.split("|", 1)[0]), []).append(lease)
        lost: set[str] = set()
        failure: RedisError | None = None
        for shards in self._caller.nodes().values():
            calls = [(shard, (self._lease_ms, *by_shard[shard])) for shard in shards if shard in by_shard]
            try:  # without retries: the leases of the other nodes run out meanwhile
                lost.update(lease for leases in self._caller.call_all_once("ledger/renew", calls) for lease in leases)
            except RedisError as error:
                if not is_transient(error):
                    raise
                failure = error
        if failure is not None:
            raise UnavailableError(reason(failure)) from failure
        return lost

    def names(self, shards: Iterable[int] = range(SHARDS), *, silent_s: float | None = None) -> list[str]:
        """Return the names of all leases in some shards, `run|attempt|owner|step`; or of those that were not renewed for `silent_s`."""
        within_ms = "+inf" if silent_s is None else str(int((self._lease_s - silent_s) * 1000))
        return [
            lease
            for _, leases in self._caller.read_shards("ledger/leases", list(shards), within_ms)
            for lease in leases
        ]

    def expire(self, leases: Iterable[str]) -> None:
        """Expire leases now, because their owner is known to be dead."""
        redis = self._caller.redis
        known = [(f"{shard_key(redis, shard_of(lease.split('|', 1)[0]))}:leases", {lease: 0.0}) for lease in leases]
        self._caller.with_retries(lambda: ask_each(redis, known, lambda pipe, entry: pipe.zadd(*entry, xx=True)))

    def sweep(self, shard: int, *, most: int = SWEEP_ENTRIES) -> Swept:
        """Sweep one shard: expired leases, due timers, steps that nobody began in time, expired runs, what calls left of runs."""
        return self._sweep([shard], most)[shard]

    def sweep_all(self, shards: Iterable[int] = range(SHARDS)) -> list[Swept]:
        """Sweep some shards; return the result of those in which something was found, or that failed."""
        due = [
            part[index - 1]
            for part, indexes in self._caller.read_shards("ledger/due", list(shards))
            for index in indexes
        ]
        return [swept for swept in self._sweep(due, SWEEP_ENTRIES).values() if swept != Swept()]

    def _sweep(self, shards: Sequence[int], most: int) -> dict[int, Swept]:
        """Return the results of the sweeps of some shards. Each is swept in short calls while there is more to do, for MAX_SWEEP_S."""
        found: dict[int, dict[str, Any]] = {}
        again, ends_at = shards, time.monotonic() + MAX_SWEEP_S
        while again and (not found or time.monotonic() < ends_at):
            calls = [(shard, (RESEND_MS, str(most), __version__, "" if shard in found else "1")) for shard in again]
            replies = [named(reply) for reply in self._caller.call_all("ledger/sweep", calls, on_error=_failed_sweep)]
            for shard, reply in zip(again, replies, strict=True):
                found[shard] = _sum(found.get(shard, {}), reply)
            again = [shard for shard, reply in zip(again, replies, strict=True) if "is_busy" in reply]
        return {shard: swept_of(shard, reply) for shard, reply in found.items()}


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two replies of a sweep as one: lists and counts are added, the last error stays."""
    both = {name: one[name] + other[name] for name in one.keys() & other.keys() if name != "fault"}
    return {**one, **other, **both}


def _failed_sweep(error: ResponseError) -> list[Any]:
    """Return the reply of a sweep that failed in one shard."""
    return ["fault", str(error)]
