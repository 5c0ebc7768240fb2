"""Runs the gateway in this process, until it is told to end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from cantata import embedded
from cantata.dashboard.pages.origins import is_loopback
from cantata.errors import ConfigError, UnavailableError

GRACE_S = 5.0  # for requests under way when it is told to end; those who follow runs are let go of at once
CLOSE_GRACE_S = 2.0  # for what is left to send on a WebSocket that is over
TICKS = 10  # of a tenth of a second, between two looks whether the stack is still there
BACKLOG = 2048  # connections that may come at once


def check_address(host: str, *, has_tokens: bool, is_published_on_loopback: bool = False) -> None:
    """Refuse an address that others reach, unless they need a token. Raises ConfigError."""
    if not (has_tokens or is_published_on_loopback or is_loopback(host)):
        raise ConfigError(
            f"{host!r} can be reached from other machines, so tokens are needed: name a file of them with --tokens-file, "
            "or leave --host out to be reached from this machine only",
            source="gateway",
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens: the one that the stack holds for this process, if any. Raises UnavailableError if it cannot be had."""
    if inherited := embedded.inherited_socket():
        return inherited
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise UnavailableError(f"the gateway cannot listen on {host}, port {port}: {error.strerror}; name another with --port") from error
    return listening


def url_of(listening: socket.socket) -> str:
    """Where a socket listens, as an address to ask."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class GatewayServer(uvicorn.Server):
    """uvicorn, which tells when it listens, lets go of followers before it ends, and ends when its stack does."""

    def __init__(self, app: FastAPI, *, ready: Callable[[], None] = lambda: None, max_bytes: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, http="h11", ws=_WebSocketProtocol, ws_max_size=max_bytes, ws_per_message_deflate=False,
                lifespan="on", timeout_graceful_shutdown=int(GRACE_S), server_header=False,
            )
        )  # fmt: skip  # without compression: it takes 40 kB of memory a connection, and frames are small
        self._app = app
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0 and embedded.is_stack_gone():
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.service.streams.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let the usual signals end it, the second one at once; and do no more than that, so that an end is not an error."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets, which do not wait for ever for a client that never reads."""

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)
