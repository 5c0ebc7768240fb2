"""The outermost layer: paths as they were written, without what stands before all of ours, and refusals of the layers within as answers."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantata.errors import ConfigError
from cantata.gateway.http_errors import RequestRejected

PathName = Annotated[str, AfterValidator(unquote)]
"""A part of a path as it was meant: only here is it decoded, so that a name may hold a slash (`%2F`)."""


_PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")


def prefix_of(text: str, *, ours: Collection[str]) -> str:
    """What stands before every path, as `/a/b`, or nothing. Raises ConfigError, also if it begins as one of our own paths does."""
    found = f"/{stripped}" if (stripped := text.strip("/")) else ""
    if not _PREFIX.fullmatch(found):
        raise ConfigError(f"{text!r} cannot stand before paths: it is letters, digits and `._~-`, with slashes between", source="gateway")
    if found and found.split("/")[1] in ours:
        raise ConfigError(f"{text!r} begins as a path of the gateway itself does; name another, such as 'cantata'", source="gateway")
    return found


class OuterLayer:
    """Lets routes see the path as it was written, and answers what is refused before a route is found.

    `prefix` is taken off where it is there: a proxy may hand it on, or take it off itself.
    """

    def __init__(self, app: ASGIApp, *, prefix: str = "") -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def watched(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app({**scope, "path": self._own(scope["raw_path"].decode("ascii"))}, receive, watched)
        except RequestRejected as refused:
            if has_started:
                raise
            await answer(refused, scope, receive, send)

    def _own(self, path: str) -> str:
        bare = path.removeprefix(self._prefix) or "/"
        return bare if bare.startswith("/") else path


async def answer(refused: RequestRejected, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or the handshake of a WebSocket, with a rejection."""
    response = refused.response()
    if scope["type"] == "http":
        await response(scope, receive, send)
        return
    await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "websocket.http.response.body", "body": response.body})
