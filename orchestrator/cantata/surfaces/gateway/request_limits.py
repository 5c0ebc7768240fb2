"""Limits of requests: the size and time of a body, and the rate of a tenant."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantata.client import failures
from cantata.client.failures import RedisFailure
from cantata.client.streams import RequestRate
from cantata.surfaces.gateway.access import is_public
from cantata.surfaces.http.rejections import RequestRejected

TIMEOUT_S = 1.0  # for Redis
BODY_S = 30.0  # for the next part of a body
MAX_BODIES = 8  # bodies of the largest size that a tenant's open requests may have together

log = structlog.get_logger(__name__)


class RequestRateLimit:
    """Enforces the request rate of each tenant. While Redis is away it rejects nothing: requests that need Redis fail by themselves."""

    def __init__(self, app: ASGIApp, *, request_rate: RequestRate) -> None:
        self._app = app
        self._request_rate = request_rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not is_public(scope["path"]):
            await check_rate(self._request_rate, scope["state"]["tenant"])
        await self._app(scope, receive, send)


async def check_rate(request_rate: RequestRate, tenant: str) -> None:
    """Count a request of a tenant. Raises RequestRejected if it exceeds the rate."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            wait_s = await request_rate.wait_s(tenant)
    except (RedisFailure, OSError) as error:  # a time-out is an OSError
        failures.warn(log, "request_rate_unknown", error if str(error) else TimeoutError("no answer"))
        return
    if wait_s:
        raise RequestRejected(
            429, f"too many requests; retry in {wait_s:.1f} s", code="rate_limited", retry_after_s=wait_s
        )


class BodyLimit:
    """Rejects bodies above a size, as soon as the size is known, those that stop coming, and those of a tenant that has too many."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        """Bytes of the bodies of open requests, by their tenant."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        self._check(int(announced) if announced.isdecimal() else 0)
        received, is_whole, tenant = 0, False, scope["state"]["tenant"]

        async def bounded() -> Message:
            nonlocal received, is_whole
            if is_whole:
                return await receive()  # it waits for the client to disconnect
            try:
                async with asyncio.timeout(BODY_S):
                    message = await receive()
            except TimeoutError:
                raise RequestRejected(408, f"no part of the body came for {BODY_S:.0f} s", code="too_slow") from None
            size, is_whole = len(message.get("body", b"")), not message.get("more_body")
            received += size
            self._held[tenant] += size
            self._check(received)
            if self._held[tenant] > MAX_BODIES * self._max_bytes:
                message_text = (
                    "the bodies of the open requests of this tenant are too large together; send fewer at once"
                )
                raise RequestRejected(429, message_text, code="too_many_open", retry_after_s=1)
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held[tenant] -= received
            if not self._held[tenant]:
                del self._held[tenant]

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise RequestRejected(
                413, f"the body is larger than {self._max_bytes / 1e6:.1f} MB, the limit of this gateway"
            )
