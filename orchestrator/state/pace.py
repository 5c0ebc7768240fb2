"""Keeps the pace at which tenants may ask gateways, all of them together. `lua/limits_pace.lua` says what is kept."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import cast
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from orchestrator.state.limits import LIMITS_KEY

_SCRIPT = (files("orchestrator.state") / "lua" / "limits_pace.lua").read_text()
_SHA = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


class Pace:
    """So many requests a second for each tenant, and a burst of them at once."""

    def __init__(self, redis: Redis, *, per_s: float, burst: int) -> None:
        self._redis = redis
        self._args = (str(max(1, round(1e6 / per_s))), str(burst))

    async def wait_s(self, tenant: str) -> float:
        """0 if a request may be answered now, which is counted; else in how many seconds to come again."""
        key = f"{LIMITS_KEY}:pace:{quote(tenant, safe='')}"
        try:
            wait_ms = await self._redis.evalsha(_SHA, 1, key, *self._args)
        except NoScriptError:
            wait_ms = await self._redis.eval(_SCRIPT, 1, key, *self._args)
        return cast(int, wait_ms) / 1000
