"""Chat over a WebSocket: receives texts, sends frames. A client can get everything again with another connection.

A client sends `{"text": ...}` for a turn, and `{"resume": {run_id: seq}}` to continue at an offset; any number of turns may be open.
Messages are processed in order; frames of one run are sent in order, each once.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Annotated

import structlog
from fastapi import APIRouter, WebSocket
from pydantic import Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from cantata.client.failures import RedisFailure, StreamsEnded
from cantata.client.runs import TurnRun
from cantata.client.streams import RequestRate
from cantata.client.turn_activity import steps_of
from cantata.config.documents import Document, parse_json
from cantata.config.faults import faults_of
from cantata.errors import CantataError, ConfigError, UnknownRunError
from cantata.flows.wire import TurnRequest, fault_of_session
from cantata.surfaces.gateway.access import SUBPROTOCOL
from cantata.surfaces.gateway.api import chat_frames
from cantata.surfaces.gateway.api.chat_frames import Frame
from cantata.surfaces.gateway.granted_client import apply_mention
from cantata.surfaces.gateway.grants import Grant
from cantata.surfaces.gateway.http_errors import rejection
from cantata.surfaces.gateway.outer_layer import PathName
from cantata.surfaces.gateway.request_limits import check_rate
from cantata.surfaces.gateway.service import GatewayService
from cantata.surfaces.http.rejections import RequestRejected
from cantata.values import NumberOfSeconds, Value

TOO_SLOW = 4008  # close code for a client that does not read
ENDING = 1012  # close code for the end of the gateway: the client should reconnect
SEND_TIMEOUT_S = 10.0  # for a client that does not read
CLOSE_TIMEOUT_S = 2.0  # for the close frame
MAX_FOLLOWED = 100  # open runs of one connection

log = structlog.get_logger(__name__)
router = APIRouter()


class ChatText(Value):
    """A text for a turn."""

    text: str = Field(description="the user's message; `@agent: text` addresses an agent without routing")
    id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="the client's own, unique in the session: sent twice, it is one turn",
    )
    team: str | None = Field(default=None, description="the team to answer; the default one if neither is named")
    agent: str | None = Field(default=None, description="the agent to answer")
    send_history: bool = Field(
        default=False, description="whether the agent's input begins with the conversation so far, as text"
    )
    timeout_s: NumberOfSeconds | None = Field(default=None, gt=0, le=30 * 86400, description="seconds the run may take")


class ResumeRequest(Value):
    """Runs to continue."""

    resume: dict[str, Annotated[int, Field(ge=0, le=2**53)]] = Field(
        min_length=1, max_length=MAX_FOLLOWED, description="run id → the offset of the last received frame; 0 for all"
    )


class _ClientGone(Exception):
    """The client has disconnected, or does not read."""


@router.websocket("/ws/{session}")
async def chat(websocket: WebSocket, session: PathName) -> None:
    """Serve the chat of a session until the client disconnects. Its runs continue. An operator names the tenant by `?tenant=`."""
    token: Grant = websocket.state.grant
    grant = token.for_tenant(websocket.query_params.get("tenant"))
    grant.require("chat")
    if fault := fault_of_session(session):
        raise RequestRejected(422, fault, code="bad_request")
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
    state = websocket.app.state
    connection = _ChatConnection(websocket, state.service, state.request_rate, grant, session)
    await connection.serve()


class _ChatConnection:
    """Connection of one client."""

    def __init__(
        self, websocket: WebSocket, service: GatewayService, request_rate: RequestRate, grant: Grant, session: str
    ) -> None:
        self._websocket = websocket
        self._service = service
        self._request_rate = request_rate
        self._grant = grant
        self._session = session
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()
        self._serving: asyncio.Task[None] | None = None
        self._is_disconnected = False

    async def serve(self) -> None:
        """Process messages until the client disconnects, or is disconnected."""
        self._serving = asyncio.current_task()
        try:
            while True:
                await self._process(await self._websocket.receive())
        except (_ClientGone, WebSocketDisconnect):
            pass
        except asyncio.CancelledError:
            if not self._is_disconnected:
                raise
        finally:
            for task in self._followed.values():
                task.cancel()

    async def _process(self, message: Message) -> None:
        if message["type"] == "websocket.disconnect":
            raise _ClientGone
        named: str | None = None
        try:
            await check_rate(self._request_rate, self._websocket.state.tenant)
            document = _document(message.get("text"))
            named = _id_of(document)
            request = _request(document)
            await (self._resume(request) if isinstance(request, ResumeRequest) else self._submit(request))
        except (CantataError, RedisFailure, RecursionError) as error:
            await self._send({"type": "error", "id": named, **_fault(error)})

    async def _submit(self, text: ChatText) -> None:
        self._check_followed()
        turn = apply_mention(TurnRequest(session=self._session, **text.model_dump(exclude={"id"})))
        key = None if text.id is None else f"{self._session}\n{text.id}"
        run = await self._service.call.when_free(self._service.granted(self._grant).submit_turn, turn, key)
        await self._send({"type": "accepted", "run_id": run.run_id, "id": text.id})
        self._follow(run, 0)

    def _check_followed(self) -> None:
        if len(self._followed) >= MAX_FOLLOWED:
            raise RequestRejected(
                429, f"{MAX_FOLLOWED} turns of this connection are still open", code="too_many_turns", retry_after_s=1
            )

    async def _resume(self, request: ResumeRequest) -> None:
        for run_id, after in request.resume.items():
            try:
                self._check_followed()
                run = await self._service.call.when_free(self._find_turn, run_id)
            except CantataError as error:
                await self._send({"type": "error", "run_id": run_id, **_fault(error)})
            else:
                self._follow(run, after)

    def _find_turn(self, run_id: str) -> TurnRun:
        """Return a turn of the session. Raises UnknownRunError, also for any other run."""
        runs = self._service.of(self._grant.tenant)
        run = runs.find(run_id)
        if not isinstance(run, TurnRun) or runs.request(run_id, TurnRequest).session != self._session:
            raise UnknownRunError(f"run {run_id!r} is no turn of session {self._session!r}")
        return run

    def _follow(self, run: TurnRun, after: int) -> None:
        """Start to send the frames of a run, unless it is followed already."""
        if run.run_id in self._followed:
            return
        task = asyncio.create_task(self._send_frames(run, after))
        self._followed[run.run_id] = task
        task.add_done_callback(lambda _: self._followed.pop(run.run_id, None))

    async def _send_frames(self, run: TurnRun, after: int) -> None:
        with suppress(_ClientGone, WebSocketDisconnect):
            try:
                await self._follow_to_end(run, after)
            except (_ClientGone, WebSocketDisconnect):
                pass
            except StreamsEnded:
                await self._close(ENDING, "the gateway is shutting down; your turns continue")
            except Exception as error:  # noqa: BLE001  # the edge of a task; `rejection` logs unexpected errors
                await self._send({"type": "error", "run_id": run.run_id, **_fault(error)})

    async def _follow_to_end(self, run: TurnRun, after: int) -> None:
        with self._service.streams.runs.follow(run.run_id, after=after) as follower:
            while True:
                events = await follower.events()
                step_ids = steps_of(events)
                steps = await self._service.call.when_free(run.steps, step_ids) if step_ids else {}
                for event in events:
                    if event.ends_run:
                        await self._send(
                            chat_frames.result_frame(event, await self._service.call.when_free(run.result))
                        )
                        return
                    frame = chat_frames.frame_of(event, steps.get(event.step or ""))
                    if frame is not None:
                        await self._send(frame)

    async def _send(self, frame: Frame) -> None:
        """Send a frame; disconnect a client that does not read. Raises _ClientGone."""
        text = json.dumps(frame, ensure_ascii=False)
        async with self._sending:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._websocket.send_text(text)
                return
            except TimeoutError:
                log.info("client_too_slow", session=self._session)
            except RuntimeError as error:  # it was closed meanwhile
                raise _ClientGone from error
        await self._disconnect()
        raise _ClientGone

    async def _disconnect(self) -> None:
        """End the connection; the client gets the close frame when it reads again."""
        if not self._is_disconnected and self._serving:
            self._is_disconnected = True
            await self._close(TOO_SLOW, "too slow; reconnect and resume")
            if self._serving is not asyncio.current_task():
                self._serving.cancel()

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._websocket.close(code, reason)


def _document(text: object) -> Document:
    """Return a message, which must be a JSON object. Raises ConfigError."""
    if not isinstance(text, str):
        raise ConfigError("a message must be JSON text, not bytes", source="message")
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        raise ConfigError('a message must be a JSON object, such as {"text": "..."}', source="message")
    return parse_json(text, source="message")


def _id_of(document: Document) -> str | None:
    """Return the id of a message, for the error frame; None if it has none."""
    named = document.data.get("id") if isinstance(document.data, dict) else None
    return named if isinstance(named, str) else None


def _request(document: Document) -> ChatText | ResumeRequest:
    """Return the request in a message. Raises ConfigError with every fault."""
    model: type[ChatText | ResumeRequest] = (
        ResumeRequest if isinstance(document.data, dict) and "resume" in document.data else ChatText
    )
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, document, model), source="message") from error


def _fault(error: Exception) -> Frame:
    rejected = rejection(error)
    body: Frame = rejected.body.model_dump(mode="json")
    if rejected.retry_after_s:
        body["retry_after_s"] = rejected.retry_after_s
    return body
