"""What one request may take: its size, and its tenant's pace."""

from __future__ import annotations

import asyncio

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantata.gateway.access import is_open
from cantata.gateway.http_errors import RequestRejected
from cantata.state.limits.request_rate import Pace
from cantata.state.redis import outages
from cantata.state.redis.connection import RedisFailure

TIMEOUT_S = 1.0  # for a Redis that hangs, which is as good as away

log = structlog.get_logger(__name__)


class RequestRateLimit:
    """Has each tenant ask no faster than its pace. While Redis is away nothing is held back: what needs it fails by itself."""

    def __init__(self, app: ASGIApp, *, pace: Pace) -> None:
        self._app = app
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not is_open(scope["path"]):
            await hold(self._pace, scope["state"]["tenant"])
        await self._app(scope, receive, send)


async def hold(pace: Pace, tenant: str) -> None:
    """Count a request of a tenant. Raises RequestRejected if it comes too soon."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            wait_s = await pace.wait_s(tenant)
    except (RedisFailure, OSError) as error:  # the time-out is one too
        outages.warn(log, "pace_unknown", error if str(error) else TimeoutError("no answer"))
        return
    if wait_s:
        raise RequestRejected(429, f"too many requests; ask again in {wait_s:.1f} s", code="rate_limited", retry_after_s=wait_s)


class BodySizeLimit:
    """Refuses bodies above a size, as soon as that is known."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._most = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "")
        self._check(int(told) if told.isdecimal() else 0)
        came = 0

        async def bounded() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            self._check(came)
            return message

        await self._app(scope, bounded, send)

    def _check(self, size: int) -> None:
        if size > self._most:
            raise RequestRejected(413, f"the body is larger than {self._most / 1e6:.1f} MB, the limit of this gateway")
