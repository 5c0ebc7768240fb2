"""Access log of the gateway: a line for each request, and for each WebSocket that opens or closes, without tokens and queries."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantata.operation.logs import access_logger
from cantata.surfaces.gateway.access import address_of

MAX_PATH_CHARS = 500
ABNORMAL = 1006  # the close code of a WebSocket whose client sent none
_NOT_RUNS = ("counts", "bulk")  # paths below /runs that name no run


class AccessLog:
    """Logs each request when its response ends, also a rejected one; a WebSocket when it opens and when it closes. The outermost layer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = access_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})  # inner layers add to it who asks
        request = _Request(scope)
        log = self._log

        async def noting_receive() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                request.code = message.get("code", ABNORMAL)
            return message

        async def noting_send(message: Message) -> None:
            request.note(message)
            await send(message)
            if message["type"] == "websocket.accept":
                log.info("websocket_opened", **request.fields(), status=101)

        try:
            await self._app(scope, noting_receive, noting_send)
        finally:
            if request.is_open:
                log.info("websocket_closed", **request.fields(), code=request.code, **request.totals())
            else:
                log.info("request", **request.fields(), status=request.status, **request.totals())


class _Request:
    """A request under way."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._began = time.monotonic()
        self.status: int | None = None
        """None if the client went away before a response."""
        self.is_open = False
        """Whether it is a WebSocket that was accepted."""
        self.code = ABNORMAL
        self._bytes = 0

    def note(self, message: Message) -> None:
        """Note a message to the client."""
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
            case "http.response.body" | "websocket.http.response.body":
                self._bytes += len(message.get("body", b""))
            case "websocket.accept":
                self.is_open = True
            case "websocket.send":
                self._bytes += len(message.get("text") or message.get("bytes") or "")
            case "websocket.close" if self.is_open:
                self.code = message.get("code", 1000)
            case "websocket.close":
                self.status = 403  # as the server answers a handshake that is closed

    def fields(self) -> MutableMapping[str, Any]:
        """Return who asks for what."""
        path = self._scope["raw_path"].decode("ascii", "backslashreplace")
        state = self._scope["state"]
        grant = state.get("grant")
        found = {
            "address": _printable(address_of(self._scope)),
            "token": (grant.name if grant else "") or None,
            "tenant": state.get("tenant_of_request", grant.tenant) if grant and grant.name else None,
            "method": self._scope.get("method", "GET"),
            "path": _printable(path),
        }
        run_id = _run_in(path)
        return {**found, "run": run_id} if run_id else found

    def totals(self) -> dict[str, int]:
        """Return the time that it took, in milliseconds, and the bytes of its body."""
        return {"ms": round((time.monotonic() - self._began) * 1000), "bytes": self._bytes}


def _printable(text: str) -> str:
    """Return a text of a client without line breaks and other control characters, cut at a length."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MAX_PATH_CHARS])


def _run_in(path: str) -> str:
    """Return the run that a path names; empty if it names none."""
    _, _, rest = f"{path}/".partition("/runs/")
    run_id = rest.partition("/")[0]
    return "" if run_id in _NOT_RUNS else _printable(run_id)
