"""Request rates of tenants, shared by all gateways. `lua/request_rate.lua` describes the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from cantata.state.limits.limiter import LIMITS_KEY
from cantata.state.redis.keys import key_of
from cantata.state.redis.lua_scripts import TEXTS, sha_of

_SCRIPT = TEXTS["request_rate"]
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
        self._asked: dict[str, list[WaitFuture]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def wait_s(self, tenant: str) -> float:
        """Return 0 and count the request if it may be served now; else in how many seconds to retry."""
        asked: WaitFuture = asyncio.get_running_loop().create_future()
        self._asked.setdefault(tenant, []).append(asked)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asked

    async def _ask(self) -> None:
        while self._asked:
            batch, self._asked = self._asked, {}
            try:
                waits = await self._waits({tenant: len(asked) for tenant, asked in batch.items()})
            except Exception as error:  # noqa: BLE001  # raised in all callers
                for asked in _waiting(batch):
                    asked.set_exception(error)
            else:
                for tenant, all_asked in batch.items():
                    free, wait_s = waits[tenant]
                    for n, asked in enumerate(all_asked):
                        if not asked.done():
                            asked.set_result(0.0 if n < free else wait_s)

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


def _waiting(batch: Mapping[str, list[WaitFuture]]) -> Iterator[WaitFuture]:
    return (asked for all_asked in batch.values() for asked in all_asked if not asked.done())
