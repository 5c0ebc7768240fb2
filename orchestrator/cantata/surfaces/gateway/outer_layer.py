"""Outermost ASGI layer: undecoded paths without the URL prefix, and rejections of inner layers as responses."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantata.errors import ConfigError
from cantata.surfaces.gateway.http_errors import response_of
from cantata.surfaces.http.rejections import RequestRejected

PathName = Annotated[str, AfterValidator(unquote)]
"""A decoded part of a path. It is decoded after routing, so that a name may contain a slash (`%2F`)."""


_PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")


def prefix_of(text: str, *, own_names: Collection[str]) -> str:
    """Return a URL prefix as `/a/b`, or empty. Raises ConfigError, also if it begins like one of our own paths."""
    found = f"/{stripped}" if (stripped := text.strip("/")) else ""
    if not _PREFIX.fullmatch(found):
        raise ConfigError(
            f"{text!r} is no URL prefix: it must be letters, digits and `._~-`, separated by slashes", source="gateway"
        )
    if found and found.split("/")[1] in own_names:
        raise ConfigError(
            f"{text!r} begins like a path of the gateway; use another prefix, such as 'cantata'", source="gateway"
        )
    return found


class OuterLayer:
    """Passes the undecoded path to the routes, and answers rejections of the layers before them.

    `prefix` is removed where it is present: a proxy may pass it on, or remove it itself.
    """

    def __init__(self, app: ASGIApp, *, prefix: str = "") -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app({**scope, "path": self._strip(scope["raw_path"].decode("ascii"))}, receive, send_and_note)
        except RequestRejected as rejected:
            if has_started:
                raise
            await answer(rejected, scope, receive, send)

    def _strip(self, path: str) -> str:
        bare = path.removeprefix(self._prefix) or "/"
        return bare if bare.startswith("/") else path


async def answer(rejected: RequestRejected, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or the handshake of a WebSocket, with a rejection."""
    response = response_of(rejected)
    if scope["type"] == "http":
        await response(scope, receive, send)
        return
    await send(
        {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
    )
    await send({"type": "websocket.http.response.body", "body": response.body})
