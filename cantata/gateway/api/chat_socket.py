"""A chat over a WebSocket: texts come in, frames go out. It holds nothing that a client could not get again by another connection.

A client sends `{"text": ...}` to have a turn answered, and `{"resume": {run_id: seq}}` to go on where it left off; any number of turns
may be under way. What it sends is taken in in order; frames of one run come in order, each once.
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

from cantata.client.runs import TurnRun
from cantata.config.documents import Document, parse_json
from cantata.config.faults import faults_of
from cantata.errors import CantataError, ConfigError, UnknownRunError
from cantata.gateway.access import SUBPROTOCOL
from cantata.gateway.api import chat_frames
from cantata.gateway.api.chat_frames import Frame
from cantata.gateway.grants import Grant
from cantata.gateway.http_errors import RequestRejected, rejection
from cantata.gateway.outer_layer import PathName
from cantata.gateway.request_limits import hold
from cantata.gateway.tenant_service import TenantService, apply_mention
from cantata.models.values import Value
from cantata.models.wire import RunResult, TurnRequest
from cantata.state.limits.request_rate import Pace
from cantata.state.redis.connection import RedisFailure
from cantata.state.runs.streams import StreamsEnded
from cantata.state.sessions.conversations import fault_of

TOO_SLOW = 4008  # the code that a connection is closed with whose client does not read
ENDING = 1012  # the gateway ends, and may be started again: come back
SLOW_S = 10.0  # how long a client may leave what it is sent unread
CLOSE_S = 2.0  # how long the code of the close may take on its way
MAX_FOLLOWED = 100  # runs that one connection follows at once

log = structlog.get_logger(__name__)
router = APIRouter()


class ChatText(Value):
    """A text to be answered."""

    text: str = Field(description="what the user said; `@agent: text` asks an agent, past all routing")
    id: str | None = Field(
        default=None, min_length=1, max_length=200, description="the client's own, unique in the session: sent twice, it is one turn"
    )
    team: str | None = Field(default=None, description="the team to answer; the default one if neither is named")
    agent: str | None = Field(default=None, description="the agent to answer")
    send_history: bool = Field(default=False, description="whether the agent's input begins with the conversation so far, as text")
    timeout_s: float | None = Field(default=None, gt=0, le=30 * 86400, description="seconds the run may take")


class ResumeRequest(Value):
    """Runs to go on with."""

    resume: dict[str, Annotated[int, Field(ge=0, le=2**53)]] = Field(
        min_length=1, max_length=MAX_FOLLOWED, description="run id → the offset of the last frame that came; 0 for all"
    )


class _ClientGone(Exception):
    """The client is gone, or does not read."""


@router.websocket("/ws/{session}")
async def chat(websocket: WebSocket, session: PathName) -> None:
    """Answers texts of a session until the client leaves. Its runs go on."""
    grant: Grant = websocket.state.grant
    grant.require("chat")
    if fault := fault_of(session):
        raise RequestRejected(422, fault, code="bad_request")
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
    state = websocket.app.state
    connection = _ChatConnection(websocket, state.service, state.pace, grant, session)
    await connection.serve()


class _ChatConnection:
    """One client."""

    def __init__(self, websocket: WebSocket, service: TenantService, pace: Pace, grant: Grant, session: str) -> None:
        self._websocket = websocket
        self._service = service
        self._pace = pace
        self._grant = grant
        self._session = session
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()
        self._serving: asyncio.Task[None] | None = None
        self._is_disconnected = False

    async def serve(self) -> None:
        """Take in what comes until the client leaves, or is let go of."""
        self._serving = asyncio.current_task()
        try:
            while True:
                await self._take(await self._websocket.receive())
        except (_ClientGone, WebSocketDisconnect):
            pass
        except asyncio.CancelledError:
            if not self._is_disconnected:
                raise
        finally:
            for task in self._followed.values():
                task.cancel()

    async def _take(self, message: Message) -> None:
        if message["type"] == "websocket.disconnect":
            raise _ClientGone
        named: str | None = None
        try:
            await hold(self._pace, self._grant.tenant)
            document = _document(message.get("text"))
            named = _id_of(document)
            said = _said(document)
            await (self._resume(said) if isinstance(said, ResumeRequest) else self._say(said))
        except (CantataError, RedisFailure, RecursionError) as error:
            await self._send({"type": "error", "id": named, **_fault(error)})

    async def _say(self, said: ChatText) -> None:
        if len(self._followed) >= MAX_FOLLOWED:
            raise RequestRejected(429, f"{MAX_FOLLOWED} turns of this connection are not over yet", code="too_many_turns", retry_after_s=1)
        turn = apply_mention(TurnRequest(session=self._session, **said.model_dump(exclude={"id"})))
        key = None if said.id is None else f"{self._session}\n{said.id}"
        run = await self._service.submit_turn(self._grant, turn, key)
        await self._send({"type": "accepted", "run_id": run.run_id, "id": said.id})
        self._follow(run, 0)

    async def _resume(self, said: ResumeRequest) -> None:
        for run_id, after in said.resume.items():
            try:
                run, turn = await self._service.turn_of(self._grant.tenant, run_id)
                if turn.session != self._session:
                    raise UnknownRunError(f"run {run_id!r} is not of session {self._session!r}")
            except CantataError as error:
                await self._send({"type": "error", "run_id": run_id, **_fault(error)})
            else:
                self._follow(run, after)

    def _follow(self, run: TurnRun, after: int) -> None:
        """Send the frames of a run as they come; one that is followed already goes on as it is."""
        if run.run_id in self._followed:
            return
        task = asyncio.create_task(self._tell(run, after))
        self._followed[run.run_id] = task
        task.add_done_callback(lambda _: self._followed.pop(run.run_id, None))

    async def _tell(self, run: TurnRun, after: int) -> None:
        with suppress(_ClientGone, WebSocketDisconnect):
            try:
                await self._tell_all(run, after)
            except (_ClientGone, WebSocketDisconnect):
                pass
            except StreamsEnded:
                await self._close(ENDING, "the gateway ends; your turns go on")
            except Exception as error:  # noqa: BLE001  # the edge of a task; `rejection` logs what nobody foresaw
                await self._send({"type": "error", "run_id": run.run_id, **_fault(error)})

    async def _tell_all(self, run: TurnRun, after: int) -> None:
        with self._service.streams.follow(run.run_id, after=after) as follower:
            while True:
                events = await follower.events()
                steps = await self._service.steps(run, chat_frames.steps_of(events))
                for event in events:
                    if event.ends_run:
                        result = await self._service.result(run)
                        assert isinstance(result, RunResult)
                        await self._send(chat_frames.result_frame(event, result))
                        return
                    frame = chat_frames.frame_of(event, steps.get(event.step or ""))
                    if frame is not None:
                        await self._send(frame)

    async def _send(self, frame: Frame) -> None:
        """Send a frame; who does not read is let go of. Raises _ClientGone."""
        text = json.dumps(frame, ensure_ascii=False)
        async with self._sending:
            try:
                async with asyncio.timeout(SLOW_S):
                    await self._websocket.send_text(text)
                return
            except TimeoutError:
                log.info("client_too_slow", session=self._session)
            except RuntimeError as error:  # it was closed meanwhile
                raise _ClientGone from error
        await self._disconnect()
        raise _ClientGone

    async def _disconnect(self) -> None:
        """End the connection, though its client will not hear of it before it reads."""
        if not self._is_disconnected and self._serving:
            self._is_disconnected = True
            await self._close(TOO_SLOW, "too slow; come back and resume")
            if self._serving is not asyncio.current_task():
                self._serving.cancel()

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)


def _document(text: object) -> Document:
    """A message, which is a JSON object. Raises ConfigError."""
    if not isinstance(text, str):
        raise ConfigError("a message is JSON text, not bytes", source="message")
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        raise ConfigError('a message is a JSON object, such as {"text": "..."}', source="message")
    return parse_json(text, source="message")


def _id_of(document: Document) -> str | None:
    """The id that a message has, so that its sender knows which one was wrong."""
    named = document.data.get("id") if isinstance(document.data, dict) else None
    return named if isinstance(named, str) else None


def _said(document: Document) -> ChatText | ResumeRequest:
    """What a message says. Raises ConfigError with every fault."""
    model: type[ChatText | ResumeRequest] = ResumeRequest if isinstance(document.data, dict) and "resume" in document.data else ChatText
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, document, model), source="message") from error


def _fault(error: Exception) -> Frame:
    refused = rejection(error)
    body: Frame = refused.body.model_dump(mode="json")
    if refused.retry_after_s:
        body["retry_after_s"] = refused.retry_after_s
    return body
