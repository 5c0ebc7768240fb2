"""The gateway's HTTP server, in this process until a signal ends it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from cantata.dashboard.http.origins import is_loopback
from cantata.embedded import stack_member
from cantata.errors import ConfigError, UnavailableError

GRACE_S = 5.0  # for requests under way at shutdown; event streams end at once
CLOSE_GRACE_S = 2.0  # to send the rest on a closed WebSocket
TICKS = 10  # of a tenth of a second, between checks whether the stack still runs
BACKLOG = 2048  # connections that may come at once


def check_address(host: str, *, has_tokens: bool, is_published_on_loopback: bool = False) -> None:
    """Check that an address needs tokens if other machines can reach it. Raises ConfigError."""
    if not (has_tokens or is_published_on_loopback or is_loopback(host)):
        raise ConfigError(
            f"{host!r} can be reached from other machines, so tokens are required: name a file of them with --tokens-file, "
            "or leave --host out to be reached from this machine only",
            source="gateway",
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket: that of the stack for this process, if any. Raises UnavailableError if the address is not available."""
    if inherited := stack_member.inherited_socket():
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
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class GatewayServer(uvicorn.Server):
    """uvicorn that reports when it listens, ends event streams before it shuts down, and ends with its stack."""

    def __init__(self, app: FastAPI, *, ready: Callable[[], None] = lambda: None, max_bytes: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, http="h11", ws=_WebSocketProtocol, ws_max_size=max_bytes,
                ws_per_message_deflate=False, lifespan="on", timeout_graceful_shutdown=int(GRACE_S), server_header=False,
            )
        )  # fmt: skip  # compression would take 40 kB of memory a connection, and frames are small
        self._app = app
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0 and stack_member.is_stack_gone():
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.service.streams.end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGINT and SIGTERM, immediately on the second one, without raising them again: such an end is no error."""
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
    """uvicorn's WebSockets, with a time limit for clients that do not read."""

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)
