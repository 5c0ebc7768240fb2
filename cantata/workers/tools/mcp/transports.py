"""Transports to MCP servers: the standard streams of a command, or HTTP. Secrets are read from the environment only here."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TextIO

import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from cantata.models.definitions import McpServer
from cantata.observability.logs.secrets import SECRET_SIZE, secrets_in
from cantata.workers.code.config_folder import environment, variable

MIN_SECRET_CHARS = 4  # shorter values are numbers and words, and would be redacted all over a text
MAX_BYTES = 2000  # of a command's standard error
EOF_TIMEOUT_S = 0.5  # a command that has ended may have left others that keep its standard error open

Read = MemoryObjectReceiveStream[SessionMessage | Exception]
Write = MemoryObjectSendStream[SessionMessage]
Streams = tuple[Read, Write]

logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs what a server wrote, which may be secret; errors are logged by us


def open_streams(server: McpServer, folder: str | None, stderr: StderrTail) -> AbstractAsyncContextManager[Streams]:
    """Open the streams from and to a server; a command runs in `folder`, and `stderr` keeps the end of its standard error."""
    return _over_http(server, server.url) if server.url else _over_stdio(server, folder, stderr)


def secrets_of(server: McpServer) -> list[str]:
    """Return the values to redact, longest first: those of the server's variables, and all other secrets of this process."""
    values = [os.environ.get(variable, "").strip() for variable in (*server.env, *server.headers.values())]
    given = [value for value in values if len(value) >= MIN_SECRET_CHARS]
    parts = [part for value in given for part in value.split() if len(part) >= SECRET_SIZE]  # the key of "Bearer KEY", the lines of a file
    return sorted({*given, *parts, *secrets_in(os.environ)}, key=len, reverse=True)


@asynccontextmanager
async def _over_stdio(server: McpServer, folder: str | None, stderr: StderrTail) -> AsyncIterator[Streams]:
    command, *arguments = server.command
    parameters = StdioServerParameters(
        command=command, args=arguments, env=environment(server.env), cwd=folder, encoding_error_handler="replace"
    )
    async with captured_stderr(stderr) as errors, stdio_client(parameters, errors) as streams:
        errors.close()  # the command has inherited it
        yield streams


@asynccontextmanager
async def _over_http(server: McpServer, url: str) -> AsyncIterator[Streams]:
    headers = {header: variable(name).strip() for header, name in server.headers.items()}
    # Each call has a time-out of its own, and the worker's slots bound the number of concurrent calls.
    timeout = httpx.Timeout(server.connect_timeout_s, read=None)
    async with (
        httpx.AsyncClient(headers=headers, timeout=timeout, limits=httpx.Limits(max_connections=None)) as client,
        streamable_http_client(url, http_client=client) as (read, write, _),
    ):
        yield read, write


class StderrTail(asyncio.Protocol):
    """Reads a pipe, and keeps the last bytes."""

    def __init__(self) -> None:
        self._tail = b""
        self._is_at_end = asyncio.Event()

    @property
    def text(self) -> str:
        """The last bytes that were written, as text."""
        return self._tail.decode(errors="replace")

    async def read_to_end(self) -> None:
        """Wait, for a short time, until all output of a command that has ended was read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EOF_TIMEOUT_S):
                await self._is_at_end.wait()

    def data_received(self, data: bytes) -> None:
        """Append data, and keep the last bytes."""
        self._tail = (self._tail + data)[-MAX_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the output."""
        self._is_at_end.set()


@asynccontextmanager
async def captured_stderr(tail: StderrTail) -> AsyncIterator[TextIO]:
    """Yield a file for a command's standard error; `tail` keeps the end of what is written to it."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: tail, os.fdopen(read, "rb", 0))
        try:
            yield file
        finally:
            file.close()  # else the end would never be reached
            await tail.read_to_end()
            transport.close()
