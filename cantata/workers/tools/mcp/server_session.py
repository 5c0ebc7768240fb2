"""One connection to an MCP server, shared by all steps of a process that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx
import structlog
from mcp import ClientSession, McpError, types

import cantata
from cantata.errors import StepError
from cantata.models.definitions import McpServer
from cantata.models.values import JsonValue, ToolSchema
from cantata.observability.logs.secrets import redact
from cantata.workers.tools.mcp import tool_results, transports
from cantata.workers.tools.mcp.session_errors import ConnectionLost
from cantata.workers.tools.mcp.stderr_tail import StderrTail
from cantata.workers.tools.mcp.transports import Read, Write

log = structlog.get_logger(__name__)

PING_S = 2.0  # a server that is gone is found this fast, where the transport does not tell: HTTP waits on for an answer that was lost
PING_PATIENCE_S = 30.0  # a server that does one thing at a time answers a ping late, and need not answer it at all
MAX_TEXT = 400  # characters that are kept of what a server says of a failure
IDLE_S = 900.0  # so that the servers of configurations that nobody uses any more do not stay
CLOSE_S = 5.0  # the SDK gives a command 2 s to end by itself, and 2 s after SIGTERM

CLOSED = (types.CONNECTION_CLOSED, "Connection closed")
UNKNOWN_SESSION = (32600, "Session terminated")
"""Errors that the SDK makes itself: of a stream that ended, and of an HTTP server that forgot us (404), so has not done what we ask."""

Result = TypeVar("Result")


class Connection:
    """A server that is asked by many steps at once.

    What the SDK enters in a task it must leave in the same task. So the connection has a task of its own for as long as it lives.
    """

    def __init__(self, name: str, server: McpServer, folder: str | None) -> None:
        """Connect to the server called `name`; a command is run in `folder`."""
        self.is_over = False
        """It is of no use any more."""
        self._name = name
        self._server = server
        self._secrets = transports.secrets_of(server)
        self._stderr = StderrTail()
        self._streams = partial(transports.opened, server, folder, self._stderr)
        self._why = "it was closed"
        self._loop = asyncio.get_running_loop()
        self._session: asyncio.Future[ClientSession] = self._loop.create_future()
        self._session.add_done_callback(asyncio.Future.exception)  # if it fails when nobody waits any more, asyncio need not say so
        self._tools: tuple[ToolSchema, ...] | None = None
        self._changes = 0  # how often the server said that its tools changed
        self._listing = asyncio.Lock()
        self._asking = 0  # requests under way
        self._asked_at = self._loop.time()
        self._notices: set[asyncio.Task[None]] = set()
        # In a context of its own: it outlives the step that connects first, and is not to carry its names and its trace.
        self._task = asyncio.create_task(self._live(), name=f"mcp {name}", context=Context())

    async def tools(self, *, fresh: bool = False) -> tuple[ToolSchema, ...]:
        """What the server can do: as it was told last, unless the server said that it changed, or it is to be `fresh`."""
        async with self._listing:
            if self._tools is None or fresh:
                changes = self._changes
                try:
                    listed = await self._ask(_listed, "the list of tools", self._server.timeout_s)
                except ConnectionLost as error:
                    raise ConnectionLost(str(error), was_sent=False) from None  # no harm if it is asked for twice
                self._tools = listed if changes == self._changes else None
                return listed
            return self._tools

    async def call(self, tool: str, arguments: Mapping[str, JsonValue], timeout_s: float | None) -> JsonValue:
        """What a tool answers."""
        result = await self._ask(
            lambda session: session.call_tool(tool, dict(arguments)), f"tool {tool!r}", timeout_s or self._server.timeout_s
        )
        answer = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        if result.isError:
            message = redact(tool_results.text_of(answer), self._secrets) or f"tool {tool!r} failed and does not say why"
            raise StepError(message, code="tool_error", retryable=True)
        return tool_results.output_of(answer)

    async def end(self) -> None:
        """Close it, and wait until it is closed."""
        self._end()
        await asyncio.wait((self._task,))

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._task.cancel()

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _ask(self, request: Callable[[ClientSession], Coroutine[Any, Any, Result]], what: str, timeout_s: float) -> Result:
        session = await asyncio.shield(self._session)
        number: int | None = None

        async def asked() -> Result:
            nonlocal number
            number = session._request_id  # it will have this one, which the SDK tells nobody
            return await request(session)

        asking = asyncio.create_task(asked())
        self._asking += 1
        try:
            await asyncio.wait((asking, self._task), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            if self._task.done():  # the SDK leaves those who wait alone then
                raise ConnectionLost(f"MCP server {self._name!r} broke off: {self._why}", was_sent=True)
            message = f"{what} of MCP server {self._name!r} did not answer within {timeout_s:g} s"
            raise StepError(message, code="timeout", retryable=True)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._end()
            raise ConnectionLost(f"MCP server {self._name!r} is gone", was_sent=False) from None
        except McpError as error:
            raise await self._refused(error, what) from None  # its own text may hold a secret
        except (RuntimeError, ValueError) as error:  # the SDK's words for what is against the protocol, or the tool's own schema
            raise StepError(f"{what} of MCP server {self._name!r}: {self._clean(str(error))}", code="bad_output") from None
        finally:
            self._asking -= 1
            self._asked_at = self._loop.time()
            if not asking.done():
                asking.cancel()
                if number is not None:
                    self._withdraw(session, number)

    async def _refused(self, error: McpError, what: str) -> StepError:
        if _is(UNKNOWN_SESSION, error):
            self._end()
            return ConnectionLost(f"MCP server {self._name!r} does not know us any more", was_sent=False)
        if _is(CLOSED, error):
            await self._stderr.end()
            self._end()
            return ConnectionLost(f"MCP server {self._name!r} ended before {what} answered{self._last_words()}", was_sent=True)
        return StepError(f"{what} of MCP server {self._name!r}: {self._clean(error.error.message)}", code="tool_error")

    def _withdraw(self, session: ClientSession, number: int) -> None:
        """Tell the server that nobody waits for a request any more."""
        parameters = types.CancelledNotificationParams(requestId=number, reason="it is not waited for any longer")
        notice = types.ClientNotification(types.CancelledNotification(params=parameters))
        sending = asyncio.create_task(_sent(session, notice))
        self._notices.add(sending)
        sending.add_done_callback(self._notices.discard)

    # --- living -----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        late = self._loop.call_later(self._server.connect_timeout_s, self._give_up)
        try:
            async with asyncio.timeout(None) as closing, self._streams() as streams, self._spoken(*streams) as session:
                try:
                    await session.initialize()
                    late.cancel()
                    self._asked_at = self._loop.time()
                    self._session.set_result(session)
                    await self._stay(session)
                finally:
                    self.is_over = True
                    closing.reschedule(self._loop.time() + CLOSE_S)
        except Exception as error:  # noqa: BLE001  # whatever the SDK and what it stands on raise, mostly in groups
            first = _first(error)
            self._why = self._reason(first)
            self._fail(
                f"cannot be {'reached' if self._server.url else 'started'}: {self._why}",
                retryable=not isinstance(first, (OSError, StepError)),
            )
            log.info("mcp_closed", server=self._name, reason=self._why)
        finally:
            late.cancel()
            self.is_over = True
            self._fail("was closed before it was ready")

    async def _stay(self, session: ClientSession) -> None:
        """Stay for as long as the server is there and used."""
        while self._asking or self._loop.time() < self._asked_at + IDLE_S:
            await asyncio.sleep(PING_S)
            if self._asking:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PING_PATIENCE_S):
                        await _ping(session)

    def _give_up(self) -> None:
        self._fail(f"was not ready within {self._server.connect_timeout_s:g} s{self._last_words()}")
        self._end()

    def _fail(self, what: str, *, retryable: bool = True) -> None:
        if not self._session.done():
            self._session.set_exception(StepError(f"MCP server {self._name!r} {what}", code="mcp_unavailable", retryable=retryable))

    def _clean(self, text: str) -> str:
        """A text from outside as it may be told: without secrets, and in one line."""
        return " ".join(redact(text, self._secrets).split())

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, httpx.HTTPStatusError):
            return f"it answers {error.response.status_code} {error.response.reason_phrase}"
        if _is(UNKNOWN_SESSION, error):
            return f"there is none at {self._clean(str(self._server.url))} (404)"
        if _is(CLOSED, error) or isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
            return f"it ended{self._last_words()}"
        return f"{self._clean(str(error))[:MAX_TEXT] or type(error).__name__}{self._last_words()}"

    def _last_words(self) -> str:
        said = self._clean(self._stderr.text)[-MAX_TEXT:]
        return f"; its last words: {said}" if said else ""

    def _spoken(self, read: Read, write: Write) -> ClientSession:
        about = types.Implementation(name="cantata", version=cantata.__version__)
        return ClientSession(read, write, message_handler=self._heard, client_info=about)

    async def _heard(self, message: object) -> None:
        """Takes in what the server says unasked."""
        if isinstance(message, types.ServerNotification) and isinstance(message.root, types.ToolListChangedNotification):
            self._changes += 1
            self._tools = None


async def _listed(session: ClientSession) -> tuple[ToolSchema, ...]:
    tools: list[types.Tool] = []
    page = None
    while page is None or page.nextCursor:
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=page.nextCursor) if page else None)
        tools += page.tools
    return tuple(ToolSchema(name=tool.name, description=tool.description or "", parameters=tool.inputSchema) for tool in tools)


async def _ping(session: ClientSession) -> None:
    """Ask whether the server is there. Raises McpError if it is not; one that knows no pings is."""
    try:
        await session.send_ping()
    except McpError as error:
        if _is(CLOSED, error) or _is(UNKNOWN_SESSION, error):
            raise


async def _sent(session: ClientSession, notice: types.ClientNotification) -> None:
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the connection is over, and with it what was asked
        await session.send_notification(notice)


def _is(known: tuple[int, str], error: BaseException) -> bool:
    return isinstance(error, McpError) and (error.error.code, error.error.message) == known


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
