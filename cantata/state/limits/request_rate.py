"""Keeps the pace at which tenants may ask gateways, all of them together. `lua/pace.lua` says what is kept."""

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

_SCRIPT = TEXTS["pace"]
_SHA = sha_of(_SCRIPT)

Asked = asyncio.Future[float]


class Pace:
    """So many requests a second for each tenant, and a burst of them at once.

    Everything that is asked while a call is under way goes into the next one, so a thousand requests at once are a few calls. Who asks
    may give up at any time: the call goes on without it, since redis-py's pool may leave others waiting if a call for a connection is
    cancelled.
    """

    def __init__(self, redis: Redis, *, per_s: float, burst: int) -> None:
        self._redis = redis
        self._args = (str(max(1, round(1e6 / per_s))), str(burst))
        self._asked: dict[str, list[Asked]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def wait_s(self, tenant: str) -> float:
        """0 if a request may be answered now, which is counted; else in how many seconds to come again."""
        asked: Asked = asyncio.get_running_loop().create_future()
        self._asked.setdefault(tenant, []).append(asked)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asked

    async def _ask(self) -> None:
        while self._asked:
            batch, self._asked = self._asked, {}
            try:
                waits = await self._waits({tenant: len(asked) for tenant, asked in batch.items()})
            except Exception as error:  # noqa: BLE001  # told to all who asked
                for asked in _waiting(batch):
                    asked.set_exception(error)
            else:
                for tenant, all_asked in batch.items():
                    free, wait_s = waits[tenant]
                    for n, asked in enumerate(all_asked):
                        if not asked.done():
                            asked.set_result(0.0 if n < free else wait_s)

    async def _waits(self, counts: Mapping[str, int]) -> dict[str, tuple[int, float]]:
        """How many of each tenant's requests may go on, and in how many seconds the others may come again."""
        keys = [key_of(self._redis, f"{LIMITS_KEY}:pace:{quote(tenant, safe='')}") for tenant in counts]
        told = (*keys, *self._args, *map(str, counts.values()))
        try:
            reply = await self._redis.evalsha(_SHA, len(keys), *told)
        except NoScriptError:
            reply = await self._redis.eval(_SCRIPT, len(keys), *told)
        pairs = cast("list[list[int]]", reply)
        return {tenant: (free, wait_ms / 1000) for tenant, (free, wait_ms) in zip(counts, pairs, strict=True)}


def _waiting(batch: Mapping[str, list[Asked]]) -> Iterator[Asked]:
    return (asked for all_asked in batch.values() for asked in all_asked if not asked.done())
