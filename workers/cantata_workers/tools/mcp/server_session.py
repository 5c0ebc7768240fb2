"""One connection to an MCP server, shared by all steps of a process that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

import anyio
import httpx
import structlog
from mcp import ClientSession, McpError, types
from pydantic import RootModel, ValidationError

import cantata
from cantata.errors import StepError
from cantata.flows.definitions import McpServer
from cantata.flows.json_schemas import value_faults
from cantata.operation.logs.secrets import redact
from cantata.values import JsonValue, ToolSchema
from cantata_workers.tools.mcp import tool_results, transports
from cantata_workers.tools.mcp.tool_results import ConnectionLost
from cantata_workers.tools.mcp.transports import NoAnswerError, Read, StderrTail, UnreadableReplyError, Write

log = structlog.get_logger(__name__)

PING_INTERVAL_S = (
    2.0  # finds a server that has ended, where the transport does not: HTTP waits on for an answer that was lost
)
PING_TIMEOUT_S = 30.0  # a server that executes one request at a time answers a ping late, or not at all
MAX_FAULTS = 5  # of a result that does not fit its schema
MAX_NAME_CHARS = 100  # of a tool in the log
MAX_TEXT_CHARS = 400  # of a server's text about a failure
IDLE_S = 900.0  # so that the servers of configurations that are no longer used do not stay
DOUBT_S = (
    2.0  # from a line that is no message to the answer; for servers that log to standard output before they answer
)
MAX_PAGES = 1000  # of a list of tools
CLOSE_S = 5.0  # the SDK gives a command 2 s to end by itself, and 2 s after SIGTERM

CLOSED = (types.CONNECTION_CLOSED, "Connection closed")
UNKNOWN_SESSION = (32600, "Session terminated")
"""Errors that the SDK makes itself: for a stream that ended, and for an HTTP server that lost the session (404) and executed nothing."""

JsonObject = dict[str, Any]
Request = types.CallToolRequest | types.ListToolsRequest
_Json = RootModel[JsonObject]
"""A result as it came. The SDK's models refuse all of it for one part of a type that they do not know."""


class Connection:
    """A connection to a server, for many concurrent requests.

    The SDK requires that a context is left by the task that entered it. So the connection has a task of its own until it is closed.
    """

    def __init__(self, name: str, server: McpServer, folder: str | None) -> None:
        """Connect to the server called `name`; its command runs in `folder`."""
        self.is_closed = False
        self.unreadable_tools: Mapping[str, str] = {}
        """Tools of the last list that cannot be read → why."""
        self._name = name
        self._server = server
        self._secrets = transports.secrets_of(server)
        self._stderr = StderrTail()
        self._streams = partial(transports.open_streams, server, folder, self._stderr)
        self._close_reason = "it was closed"
        self._loop = asyncio.get_running_loop()
        self._session: asyncio.Future[ClientSession] = self._loop.create_future()
        self._session.add_done_callback(
            asyncio.Future.exception
        )  # so that asyncio does not log an exception that nobody awaits
        self._tools: tuple[ToolSchema, ...] | None = None
        self._output_schemas: dict[str, JsonObject | None] = {}
        self._tool_changes = 0  # notifications of the server that its tools changed
        self._listing = asyncio.Lock()
        self._open_requests = 0
        self._unreadable: dict[int, asyncio.Future[UnreadableReplyError]] = {}
        """Open request → set to the fault if its answer cannot be read."""
        self._doubted: set[int] = set()
        """Open requests beside which a line was written that is no message."""
        self._fault = ""  # what it wrote that is no message, while it starts
        self._used_at = self._loop.time()
        self._notices: set[asyncio.Task[None]] = set()
        # In a context of its own: it outlives the step that connects first, and must not carry its log names and trace.
        self._task = asyncio.create_task(self._run(), name=f"mcp {name}", context=Context())

    async def tools(self, *, fresh: bool = False) -> tuple[ToolSchema, ...]:
        """Return the server's tools, from a cache until the server notifies of a change; list them anew if `fresh`."""
        async with self._listing:
            if self._tools is None or fresh:
                changes = self._tool_changes
                try:
                    listed = await self._list_tools()
                except ConnectionLost as error:
                    raise ConnectionLost(str(error), was_sent=False) from None  # listing twice does no harm
                self._tools = listed if changes == self._tool_changes else None
                return listed
            return self._tools

    async def _list_tools(self) -> tuple[ToolSchema, ...]:
        """Return all tools that can be read, and note the others."""
        listed, unreadable, cursor = list[ToolSchema](), dict[str, str](), None
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await self._request(
                types.ListToolsRequest(params=params), "the list of tools", self._server.timeout_s
            )
            if not isinstance(tools := page.get("tools"), list):
                raise StepError(f"the list of tools of MCP server {self._name!r} has no 'tools'", code="bad_output")
            for tool in tools:
                try:
                    listed.append(self._tool(types.Tool.model_validate(tool)))
                except ValidationError as error:
                    name = str(tool.get("name") if isinstance(tool, dict) else tool)[:MAX_NAME_CHARS]
                    unreadable[name] = self._clean(_faults(error))
                    log.warning("mcp_tool_unreadable", server=self._name, tool=name, reason=unreadable[name])
            cursor = page.get("nextCursor")
            if not cursor:
                self.unreadable_tools = unreadable
                return tuple(listed)
        raise StepError(
            f"the list of tools of MCP server {self._name!r} has more than {MAX_PAGES} pages", code="bad_output"
        )

    def _tool(self, tool: types.Tool) -> ToolSchema:
        self._output_schemas[tool.name] = tool.outputSchema
        return ToolSchema(name=tool.name, description=tool.description or "", parameters=tool.inputSchema)

    async def call(self, tool: str, arguments: Mapping[str, JsonValue], timeout_s: float | None) -> JsonValue:
        """Call a tool; return its output. Raises StepError if the tool failed."""
        subject = f"tool {tool!r}"
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        result = await self._request(types.CallToolRequest(params=params), subject, timeout_s or self._server.timeout_s)
        if result.get("isError"):
            message = redact(tool_results.error_text(result), self._secrets) or f"{subject} failed without a message"
            raise StepError(message, code="tool_error", retryable=True)
        if (schema := self._output_schemas.get(tool)) is not None:
            await self._check_structure(result, schema, subject)
        return tool_results.output_of(result)

    async def _check_structure(self, result: JsonObject, schema: JsonObject, subject: str) -> None:
        """Check the structured content of a result against the schema that the server listed for the tool. Raises StepError.

        In a thread, with our validator: the SDK's has no time-out, and runs on the event loop, where a pattern would stop all steps.
        """
        where = f"{subject} of MCP server {self._name!r}"
        if (content := result.get("structuredContent")) is None:
            raise StepError(
                f"{where}: its tool has an output schema, but the result has no structured content", code="bad_output"
            )
        if faults := await asyncio.to_thread(value_faults, content, schema, most=MAX_FAULTS):
            text = self._clean("; ".join(map(str, faults)))
            raise StepError(f"{where}: the result does not fit the tool's output schema: {text}", code="bad_output")

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self._close()
        await asyncio.wait((self._task,))

    def _close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._task.cancel()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _request(self, request: Request, subject: str, timeout_s: float) -> JsonObject:
        """Send a request and return its result; `subject` names it in errors."""
        session = await asyncio.shield(self._session)
        request_id: int | None = None
        unreadable = self._loop.create_future()

        async def send() -> JsonObject:
            nonlocal request_id
            request_id = session._request_id  # the id that the request will have, which the SDK does not return
            self._unreadable[request_id] = unreadable
            return (await session.send_request(types.ClientRequest(request), _Json)).root

        sending = asyncio.create_task(send())
        self._open_requests += 1
        try:
            await asyncio.wait(
                (sending, self._task, unreadable), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if sending.done():
                return sending.result()
            if unreadable.done():
                fault = self._clean(str(unreadable.result()))
                if isinstance(unreadable.result(), NoAnswerError):
                    raise ConnectionLost(
                        f"the connection to MCP server {self._name!r} was lost: {fault} to {subject}", was_sent=True
                    )
                raise StepError(f"{subject} of MCP server {self._name!r} did not answer: {fault}", code="bad_output")
            if self._task.done():  # the SDK does not end its pending requests then
                raise ConnectionLost(
                    f"the connection to MCP server {self._name!r} was lost: {self._close_reason}", was_sent=True
                )
            message = f"{subject} of MCP server {self._name!r} did not answer within {timeout_s:g} s"
            raise StepError(message, code="timeout", retryable=True)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._close()
            raise ConnectionLost(f"the connection to MCP server {self._name!r} is closed", was_sent=False) from None
        except McpError as error:
            raise await self._error_of(error, subject) from None  # its own text may hold a secret
        except (RuntimeError, ValueError) as error:  # the SDK's errors for a breach of the protocol
            raise StepError(
                f"{subject} of MCP server {self._name!r}: {self._clean(str(error))}", code="bad_output"
            ) from None
        finally:
            self._open_requests -= 1
            self._used_at = self._loop.time()
            if request_id is not None:
                del self._unreadable[request_id]
                self._doubted.discard(request_id)
            if not sending.done():
                sending.cancel()
                if request_id is not None:
                    self._send_cancellation(session, request_id)

    async def _error_of(self, error: McpError, subject: str) -> StepError:
        if _is(UNKNOWN_SESSION, error):
            self._close()
            return ConnectionLost(f"MCP server {self._name!r} no longer knows our session", was_sent=False)
        if _is(CLOSED, error):
            await self._stderr.read_to_end()
            self._close()
            return ConnectionLost(
                f"MCP server {self._name!r} ended before {subject} answered{self._stderr_note()}", was_sent=True
            )
        return StepError(
            f"{subject} of MCP server {self._name!r}: {self._clean(error.error.message)}", code="tool_error"
        )

    def _send_cancellation(self, session: ClientSession, request_id: int) -> None:
        """Notify the server that a request was cancelled."""
        parameters = types.CancelledNotificationParams(requestId=request_id, reason="the client stopped waiting")
        notice = types.ClientNotification(types.CancelledNotification(params=parameters))
        sending = asyncio.create_task(_notify(session, notice))
        self._notices.add(sending)
        sending.add_done_callback(self._notices.discard)

    # --- the connection's task --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        connect_timer = self._loop.call_later(self._server.connect_timeout_s, self._time_out)
        try:
            async with (
                asyncio.timeout(None) as closing,
                self._streams() as streams,
                self._new_session(*streams) as session,
            ):
                try:
                    await session.initialize()
                    connect_timer.cancel()
                    self._used_at = self._loop.time()
                    self._session.set_result(session)
                    await self._keep_open(session)
                finally:
                    self.is_closed = True
                    closing.reschedule(self._loop.time() + CLOSE_S)
        except Exception as error:  # noqa: BLE001  # whatever the SDK and its libraries raise, mostly in groups
            first = _first(error)
            self._close_reason = self._reason(first)
            self._fail(
                f"cannot be {'reached' if self._server.url else 'started'}: {self._close_reason}",
                retryable=not isinstance(first, (OSError, StepError)),
            )
            log.info("mcp_closed", server=self._name, reason=self._close_reason)
        finally:
            connect_timer.cancel()
            self.is_closed = True
            self._fail("was closed before it was ready")

    async def _keep_open(self, session: ClientSession) -> None:
        """Return when the connection was idle for long; ping the server while requests are open. Raises McpError if it has ended."""
        while self._open_requests or self._loop.time() < self._used_at + IDLE_S:
            await asyncio.sleep(PING_INTERVAL_S)
            if self._open_requests:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PING_TIMEOUT_S):
                        await _ping(session)

    def _time_out(self) -> None:
        wrote = f"; {self._fault}" if self._fault else ""
        self._fail(f"was not ready within {self._server.connect_timeout_s:g} s{wrote}{self._stderr_note()}")
        self._close()

    def _fail(self, fault: str, *, retryable: bool = True) -> None:
        """Fail the requests that wait for the session, if it is not there yet."""
        if not self._session.done():
            self._session.set_exception(
                StepError(f"MCP server {self._name!r} {fault}", code="mcp_unavailable", retryable=retryable)
            )

    def _clean(self, text: str) -> str:
        """Return a text from outside without secrets, and in one line."""
        return " ".join(redact(text, self._secrets).split())

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, httpx.HTTPStatusError):
            return f"it answers {error.response.status_code} {error.response.reason_phrase}"
        if _is(UNKNOWN_SESSION, error):
            return f"there is none at {self._clean(str(self._server.url))} (404)"
        if _is(CLOSED, error) or isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
            return f"it ended{self._stderr_note()}"
        return f"{self._clean(str(error))[:MAX_TEXT_CHARS] or type(error).__name__}{self._stderr_note()}"

    def _stderr_note(self) -> str:
        """Return the end of the command's standard error as the end of a message; empty if there is none."""
        tail = self._clean(self._stderr.text)[-MAX_TEXT_CHARS:]
        return f"; its standard error ends with: {tail}" if tail else ""

    def _new_session(self, read: Read, write: Write) -> ClientSession:
        client = types.Implementation(name="cantata", version=cantata.__version__)
        return ClientSession(read, write, message_handler=self._on_message, client_info=client)

    async def _on_message(self, message: object) -> None:
        """Drop the cached tools when the server notifies that they changed; fail the request whose answer cannot be read."""
        if isinstance(message, types.ServerNotification) and isinstance(
            message.root, types.ToolListChangedNotification
        ):
            self._tool_changes += 1
            self._tools = None
        elif isinstance(message, UnreadableReplyError):
            self._note_unreadable(message)

    def _note_unreadable(self, error: UnreadableReplyError) -> None:
        fault = self._clean(str(error))
        if not self._fault:  # once: some servers log each request there
            log.warning("mcp_unreadable", server=self._name, reason=fault)
        self._fault = fault
        if not self._session.done():  # many commands print a greeting
            if error.request_id is not None:
                self._fail(f"cannot be used: {fault}")
                self._close()
        elif error.request_id is not None:
            self._set_unreadable(error.request_id, error)
        else:
            for each in self._unreadable.keys() - self._doubted:
                self._doubted.add(each)
                self._loop.call_later(DOUBT_S, self._set_unreadable, each, error)

    def _set_unreadable(self, request_id: int, error: UnreadableReplyError) -> None:
        future = self._unreadable.get(request_id)
        if future and not future.done():
            future.set_result(error)


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)[:MAX_FAULTS]
    )


async def _ping(session: ClientSession) -> None:
    """Ping the server. Raises McpError if the connection is lost; a server that does not support pings counts as alive."""
    try:
        await session.send_ping()
    except McpError as error:
        if _is(CLOSED, error) or _is(UNKNOWN_SESSION, error):
            raise


async def _notify(session: ClientSession, notice: types.ClientNotification) -> None:
    with suppress(
        anyio.ClosedResourceError, anyio.BrokenResourceError
    ):  # the connection is closed, and the request with it
        await session.send_notification(notice)


def _is(known: tuple[int, str], error: BaseException) -> bool:
    return isinstance(error, McpError) and (error.error.code, error.error.message) == known


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
