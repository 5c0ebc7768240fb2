"""Transports to MCP servers: the standard streams of a command, or HTTP. Secrets are read from the environment only here."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import TextIO, cast

import anyio
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import RequestContext, StreamableHTTPTransport, StreamWriter
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError

from cantata.flows.definitions import McpServer
from cantata.operation.logs.secrets import SECRET_SIZE, secrets_in
from cantata_workers.process.config_folder import environment, variable

MIN_SECRET_CHARS = 4  # shorter values are numbers and words, and would be redacted all over a text
MAX_BYTES = 2000  # of a command's standard error
MAX_SHOWN_CHARS = 200  # of a line that cannot be read
# Of a command's message: an output is bounded by 16 MB, but pictures, of which only the size is kept, come whole.
MAX_LINE_BYTES = 64_000_000
END_S = 2.0  # a command has this long to end when its standard input ends, and as long after SIGTERM
EOF_TIMEOUT_S = 0.5  # a command that has ended may have left others that keep its standard error open

Read = MemoryObjectReceiveStream[SessionMessage | Exception]
Write = MemoryObjectSendStream[SessionMessage]
Streams = tuple[Read, Write]

logging.getLogger("mcp").setLevel(
    logging.CRITICAL
)  # it logs what a server wrote, which may be secret; errors are logged by us


def open_streams(server: McpServer, folder: str | None, stderr: StderrTail) -> AbstractAsyncContextManager[Streams]:
    """Open the streams from and to a server; a command runs in `folder`, and `stderr` keeps the end of its standard error."""
    return _over_http(server, server.url) if server.url else _over_stdio(server, folder, stderr)


def secrets_of(server: McpServer) -> list[str]:
    """Return the values to redact, longest first: those of the server's variables, and all other secrets of this process."""
    values = [os.environ.get(variable, "").strip() for variable in (*server.env, *server.headers.values())]
    given = [value for value in values if len(value) >= MIN_SECRET_CHARS]
    parts = [
        part for value in given for part in value.split() if len(part) >= SECRET_SIZE
    ]  # the key of "Bearer KEY", the lines of a file
    return sorted({*given, *parts, *secrets_in(os.environ)}, key=len, reverse=True)


class UnreadableReplyError(Exception):
    """A server wrote what is no message of the protocol. The message says what."""

    def __init__(self, fault: str, request_id: int | None) -> None:
        super().__init__(fault)
        self.request_id = request_id
        """The request that it was to answer; None if that is not known."""


class NoAnswerError(UnreadableReplyError):
    """A server ended its response to a request without an answer, as one that dies does."""


@asynccontextmanager
async def _over_stdio(server: McpServer, folder: str | None, stderr: StderrTail) -> AsyncIterator[Streams]:
    """Start a command, whose lines are messages. The SDK's own reader has no bound, and takes quadratic time for a long line."""
    variables = {**get_default_environment(), **environment(server.env)}
    received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, sent = anyio.create_memory_object_stream[SessionMessage](0)
    async with captured_stderr(stderr) as errors, received, read, write, sent:
        process = await asyncio.create_subprocess_exec(
            *server.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            env=variables,
            cwd=folder,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )
        errors.close()  # the command has inherited it
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_read_lines, process, received)
                group.start_soon(_write_lines, process, sent)
                try:
                    yield read, write
                finally:
                    await _end(process)
                    group.cancel_scope.cancel()  # others that the command started may keep its standard output open
        finally:
            _signal(process, signal.SIGKILL)


async def _read_lines(process: Process, received: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    assert process.stdout is not None
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # nobody reads any more
        async with received:
            while (line := await _line(process.stdout)).endswith(b"\n"):
                if not line.isspace():
                    await received.send(_message(line.decode(errors="replace")))


async def _line(output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readline()
    except ValueError:
        raise UnreadableReplyError(f"it wrote a line of more than {MAX_LINE_BYTES // 1_000_000} MB", None) from None


async def _write_lines(process: Process, sent: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    async with sent:
        async for message in sent:
            process.stdin.write(f"{message.message.model_dump_json(by_alias=True, exclude_none=True)}\n".encode())
            try:
                await process.stdin.drain()
            except OSError:
                raise anyio.BrokenResourceError from None


async def _end(process: Process) -> None:
    """End a command: its standard input ends, then SIGTERM, then SIGKILL for it and its children."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
        _signal(process, number)
    await process.wait()


def _signal(process: Process, number: int) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _message(line: str) -> SessionMessage | UnreadableReplyError:
    """Return the message that a line is."""
    try:
        return SessionMessage(JSONRPCMessage.model_validate_json(line))
    except ValidationError:
        return UnreadableReplyError(_beginning(line), _answered_request(line))


def _beginning(text: str) -> str:
    return f"it wrote {text.strip()[:MAX_SHOWN_CHARS]!r}, which is no message of the protocol"


_IDS = re.compile(r'"id"\s*:\s*"?(\d{1,15})')


def _answered_request(line: str) -> int | None:
    """Return the id of the request that a damaged message answers, if that is known; of a request or notification, None."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        ids = (
            {*_IDS.findall(line[:MAX_SHOWN_CHARS]), *_IDS.findall(line[-MAX_SHOWN_CHARS:])}
            if '"jsonrpc"' in line
            else ()
        )
        return int(ids.pop()) if len(ids) == 1 else None
    found = str(message.get("id")) if isinstance(message, dict) and "method" not in message else ""
    return int(found) if re.fullmatch(r"\d{1,15}", found) else None


@asynccontextmanager
async def _over_http(server: McpServer, url: str) -> AsyncIterator[Streams]:
    headers = {header: variable(name).strip() for header, name in server.headers.items()}
    # Each call has a time-out of its own, and the worker's slots bound the number of concurrent calls.
    timeout = httpx.Timeout(server.connect_timeout_s, read=None)
    received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, sent = anyio.create_memory_object_stream[SessionMessage](0)
    transport = _HttpTransport(url)
    async with (
        httpx.AsyncClient(headers=headers, timeout=timeout, limits=httpx.Limits(max_connections=None)) as client,
        received,
        read,
        write,
        sent,
        anyio.create_task_group() as group,
    ):

        def listen() -> None:
            group.start_soon(transport.handle_get_stream, client, received)

        group.start_soon(transport.post_writer, client, sent, received, write, listen, group)
        try:
            yield read, write
        finally:
            if transport.session_id:
                await transport.terminate_session(client)
            group.cancel_scope.cancel()


class _HttpTransport(StreamableHTTPTransport):
    """The SDK's transport, which says of which request a reply cannot be read, and when there is none."""

    async def _handle_post_request(self, ctx: RequestContext) -> None:
        message = ctx.session_message.message.root
        if isinstance(message, JSONRPCRequest):
            ctx = replace(ctx, read_stream_writer=cast(StreamWriter, _Replies(ctx.read_stream_writer, int(message.id))))
        await super()._handle_post_request(ctx)

    async def _handle_sse_response(
        self, response: httpx.Response, ctx: RequestContext, is_initialization: bool = False
    ) -> None:
        await super()._handle_sse_response(response, ctx, is_initialization)
        replies = cast(_Replies, ctx.read_stream_writer)
        if not replies.has_answer:
            await replies.send(NoAnswerError("its response ended without an answer", replies.request_id))


class _Replies:
    """The replies to one request, on their way to the session."""

    def __init__(self, writer: StreamWriter, request_id: int) -> None:
        self.request_id, self.has_answer = request_id, False
        self._writer = writer

    async def send(self, item: SessionMessage | Exception) -> None:
        """Pass an item on; an error as one of this request."""
        if isinstance(item, SessionMessage):
            self.has_answer = self.has_answer or isinstance(item.message.root, JSONRPCResponse | JSONRPCError)
        else:
            self.has_answer = True
            item = (
                item
                if isinstance(item, UnreadableReplyError)
                else UnreadableReplyError(_http_fault(item), self.request_id)
            )
        await self._writer.send(item)


def _http_fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"its response cannot be read: {error}"
    inputs = [
        each["input"]
        for each in error.errors(include_url=False)
        if each["type"] in ("json_invalid", "missing", "model_type")
    ]
    found = next(iter(inputs), "")  # the whole message
    if isinstance(found, bytes):
        found = found.decode(errors="replace")
    return _beginning(found if isinstance(found, str) else json.dumps(found))


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
