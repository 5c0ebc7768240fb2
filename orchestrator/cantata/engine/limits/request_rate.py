"""Request rates of tenants, shared by all gateways. `request_rate.lua` describes the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from cantata.engine.limits.limiter import LIMITS_KEY
from cantata.ledger.redis.keys import key_of
from cantata.ledger.scripts import TEXTS, sha_of

_SCRIPT = TEXTS["limits/request_rate"]
_SHA = sha_of(_SCRIPT)

WaitFuture = asyncio.Future[float]


class RequestRate:
    """So many requests a second for each tenant, and a burst of them at once.

    Concurrent lookups are batched into the next call, so a thousand requests at once take a few calls. A caller may be cancelled at any
    time: the call goes on without it, since redis-py's pool may leave others waiting if a wait for a connection is cancelled.
    """

    def __init__(self, redis: Redis, *, per_s: float, burst: int) -> None:
        self._redis = redis
        self._args = (str(max(1, round(1e6 / per_s))), str(burst))
        self._pending: dict[str, list[WaitFuture]] = {}
        self._lookup: asyncio.Task[None] | None = None

    async def wait_s(self, tenant: str) -> float:
        """Return 0 and count the request if it may be served now; else in how many seconds to retry."""
        future: WaitFuture = asyncio.get_running_loop().create_future()
        self._pending.setdefault(tenant, []).append(future)
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.create_task(self._look_up())
        return await future

    async def _look_up(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, {}
            try:
                waits = await self._waits({tenant: len(futures) for tenant, futures in batch.items()})
            except Exception as error:  # noqa: BLE001  # raised in all callers
                for future in _unfinished(batch):
                    future.set_exception(error)
            else:
                for tenant, futures in batch.items():
                    free, wait_s = waits[tenant]
                    for n, future in enumerate(futures):
                        if not future.done():
                            future.set_result(0.0 if n < free else wait_s)

    async def _waits(self, counts: Mapping[str, int]) -> dict[str, tuple[int, float]]:
        """Return how many of each tenant's requests may be served, and in how many seconds the others may retry."""
        keys = [key_of(self._redis, f"{LIMITS_KEY}:requests:{quote(tenant, safe='')}") for tenant in counts]
        args = (*keys, *self._args, *map(str, counts.values()))
        try:
            reply = await self._redis.evalsha(_SHA, len(keys), *args)
        except NoScriptError:
            reply = await self._redis.eval(_SCRIPT, len(keys), *args)
        pairs = cast("list[list[int]]", reply)
        return {tenant: (free, wait_ms / 1000) for tenant, (free, wait_ms) in zip(counts, pairs, strict=True)}


def _unfinished(batch: Mapping[str, list[WaitFuture]]) -> Iterator[WaitFuture]:
    return (future for futures in batch.values() for future in futures if not future.done())
