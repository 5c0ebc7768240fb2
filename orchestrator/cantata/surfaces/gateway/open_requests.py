"""Bounds of what one tenant has open in this process: requests, and among them streams, WebSockets and requests that wait for a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from cantata.surfaces.gateway.access import is_public
from cantata.surfaces.http.rejections import RequestRejected

MAX_WAITING = (
    1000  # streams, WebSockets and waiting requests of a tenant: each takes about 0.1 MB, and a file descriptor
)
OTHERS = 250  # other requests of a tenant beside them, which end soon unless their client is slow
RETRY_S = 5.0  # until one of many long requests has probably ended


class OpenRequests:
    """Counts the open requests of each tenant. For one event loop."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self.max_waiting = max_waiting
        self.open: Counter[str | None] = Counter()
        self.waiting: Counter[str | None] = Counter()

    @contextmanager
    def request(self, tenant: str | None) -> Iterator[OpenRequest]:
        """Count a request of a tenant, None for public paths, while the block lasts. Raises RequestRejected (429) if it has too many."""
        if self.open[tenant] >= self.max_waiting + OTHERS:
            message = (
                f"{self.open[tenant]:,} requests of this tenant are open; end some of them, or retry in {RETRY_S:.0f} s"
            )
            raise RequestRejected(429, message, code="too_many_open", retry_after_s=RETRY_S)
        self.open[tenant] += 1
        found = OpenRequest(self, tenant)
        try:
            yield found
        finally:
            _subtract(self.open, tenant)
            if found.is_waiting:
                _subtract(self.waiting, tenant)


class OpenRequest:
    """One open request."""

    def __init__(self, requests: OpenRequests, tenant: str | None) -> None:
        self._requests, self._tenant = requests, tenant
        self.is_waiting = False

    def wait(self) -> None:
        """Count it as one that stays open for long, until it ends. Raises RequestRejected (429) if its tenant has too many of them."""
        most, waiting = self._requests.max_waiting, self._requests.waiting
        if self.is_waiting:
            return
        if waiting[self._tenant] >= most:
            message = (
                f"{most:,} streams, WebSockets and waiting requests of this tenant are open, the limit of this gateway (--max-open); "
                f"end some of them, or retry in {RETRY_S:.0f} s"
            )
            raise RequestRejected(429, message, code="too_many_open", retry_after_s=RETRY_S)
        waiting[self._tenant] += 1
        self.is_waiting = True


class OpenRequestLimit:
    """Counts each request while it is open, and adds it to the state of the request."""

    def __init__(self, app: ASGIApp, *, open_requests: OpenRequests) -> None:
        self._app = app
        self._open_requests = open_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with self._open_requests.request(None if is_public(scope["path"]) else scope["state"]["tenant"]) as found:
            scope["state"]["open_request"] = found
            if scope["type"] == "websocket":
                found.wait()
            await self._app(scope, receive, send)


def _subtract(counts: Counter[str | None], tenant: str | None) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]
