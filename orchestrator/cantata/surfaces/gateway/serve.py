"""The gateway's HTTP server, in this process until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from cantata.errors import ConfigError, UnavailableError
from cantata.operation.embedded import stack_member
from cantata.surfaces.http.origins import is_loopback

GRACE_S = 5.0  # for requests under way at shutdown; event streams end at once
REQUEST_S = 20.0  # for the head of a request, from the first connection on
STALLED_S = 60.0  # for a client that reads nothing of a response or stream; the kernel and 64 kB here have more of it
RESERVED_FILES = 200  # of the process: connections to Redis, files, and the gateway's own
MAX_FILES = 65_536  # more connections need more gateways
FULL_BODY = (
    b'{"error": {"code": "busy", "message": "the gateway has too many connections; retry in 1 s", "faults": []}}'
)
FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
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
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise UnavailableError(
            f"the gateway cannot listen on {host}, port {port}: {error.strerror}; name another with --port"
        ) from error
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def max_connections() -> int:
    """Allow this process as many open files as it may have, and return how many connections that leaves."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return max(RESERVED_FILES, files - RESERVED_FILES)


class GatewayServer(uvicorn.Server):
    """uvicorn that reports when it listens, ends event streams before it shuts down, and ends with its stack."""

    def __init__(self, app: FastAPI, *, ready: Callable[[], None] = lambda: None, max_bytes: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                http=_HttpProtocol,
                ws=_WebSocketProtocol,
                ws_max_size=max_bytes,
                ws_per_message_deflate=False,
                lifespan="on",
                timeout_graceful_shutdown=int(GRACE_S),
                server_header=False,
            )
        )  # compression would take 40 kB of memory a connection, and frames are small
        logging.getLogger("uvicorn.error").setLevel(
            logging.WARNING
        )  # at INFO it has the query of each WebSocket, and so secrets
        self._app = app
        self._ready = ready
        _HttpProtocol.max_connections = max_connections()

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


class _HttpProtocol(H11Protocol):
    """uvicorn's HTTP, with time limits for clients that send no request and for those that do not read, and a bound of connections."""

    _idle: ClassVar[dict[_HttpProtocol, None]] = {}
    """Connections without a request, the oldest first."""
    max_connections: ClassVar[int] = 1_000_000
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            if not self._idle:
                transport.write(FULL + b"Content-Length: %d\r\n\r\n" % len(FULL_BODY) + FULL_BODY)
                transport.close()
                return
            next(iter(self._idle)).transport.abort()
        self._note_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._idle.pop(self, None)
        for timer in filter(None, (self._waiting, self._stalled)):
            timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()

    def _note_request(self) -> None:
        """Let a connection without a whole request wait for so long and no longer; uvicorn ends those that wait for a further request."""
        has_request = self.cycle is not None and not self.cycle.response_complete
        if has_request or self.transport.get_protocol() is not self or self.transport.is_closing():
            self._idle.pop(self, None)
            if self._waiting:
                self._waiting.cancel()
                self._waiting = None
        elif self._waiting is None:
            self._idle[self] = None
            self._waiting = self.loop.call_later(REQUEST_S, self.transport.abort)


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets, with a time limit for clients that do not read."""

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)
