"""The outermost layer: paths as they were written, and refusals of the layers within as answers."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.gateway.faults import Refused

Name = Annotated[str, AfterValidator(unquote)]
"""A part of a path as it was meant: only here is it decoded, so that a name may hold a slash (`%2F`)."""


class Edge:
    """Lets routes see the path as it was written, and answers what is refused before a route is found."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app({**scope, "path": scope["raw_path"].decode("ascii")}, receive, watched)
        except Refused as refused:
            if has_begun:
                raise
            await answer(refused, scope, receive, send)


async def answer(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or the handshake of a WebSocket, with a refusal."""
    response = refused.response()
    if scope["type"] == "http":
        await response(scope, receive, send)
        return
    await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "websocket.http.response.body", "body": response.body})
