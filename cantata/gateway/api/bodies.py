"""What callers send and get: the bodies of requests and answers, each with an example, as the OpenAPI document shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, Field, ValidationError

from cantata.config import chain_requests
from cantata.config.documents import parse_json
from cantata.config.faults import faults_of
from cantata.errors import ConfigError
from cantata.gateway.http_errors import RequestRejected
from cantata.models.values import JsonValue, Value
from cantata.models.wire import ChainRequest, ChainResponse, HistoryEntry, RunResult, RunStatus, SessionInfo, TurnRequest

Body = TypeVar("Body", bound=BaseModel)

TURN = {"text": "What does error E42 mean?", "team": "support", "session": "anna"}
CHAIN = {
    "nodes": [
        {"node_id": "price", "kind": "tool", "name": "price_of", "input_map": {"item": "input.item"}},
        {"node_id": "letter", "kind": "agent", "name": "writer", "input_map": {"text": "price.output"}},
    ],
    "entry_node": "price",
    "initial_input": {"item": "tea"},
}
SIGNAL = {"value": {"approved": True}}
FORK = {"from_step": "letter", "changes": {"input.item": "coffee"}}
MEMORY = {"value": {"language": "de"}, "ttl_s": 86400}


class Links(Value):
    """Where more of a run is."""

    self: str = Field(description="how it stands")
    events: str = Field(description="its events, as they come")
    cancel: str = Field(description="ends it, by POST")


class RunState(Value):
    """How a run stands."""

    run_id: str = Field(description="the run")
    kind: str = Field(description="turn or chain")
    status: RunStatus = Field(description="how it stands")
    result: RunResult | ChainResponse | None = Field(
        default=None, description="how it ended, or how far it is; null where only its id was asked for"
    )
    links: Links = Field(description="where more of it is")


class Refusals(Value):
    """Why the token that asks may not do something with a run; empty where it may."""

    cancel: str = Field(description="to end it")
    retry: str = Field(description="to do anew what it left unfinished")
    fork: str = Field(description="to do it anew from a step on")
    signal: str = Field(description="to give its waiting step a value")


class SessionList(Value):
    """Conversations, newest first."""

    sessions: list[SessionInfo] = Field(description="those that were used last, newest first")


class SessionHistory(Value):
    """What was said in a conversation."""

    session: str = Field(description="its name")
    entries: list[HistoryEntry] = Field(description="oldest first")
    waiting: list[str] = Field(description="runs of its turns that are not over: the one under way, then those that wait")


class Removed(Value):
    """What was forgotten."""

    removed: int = Field(description="how many entries or values")


class Namespaces(Value):
    """Where something is remembered."""

    namespaces: list[str] = Field(description="sorted")


class Keys(Value):
    """What is remembered in a namespace."""

    namespace: str = Field(description="its name")
    keys: list[str] = Field(description="sorted")


class MemoryValue(Value):
    """A remembered value."""

    namespace: str = Field(description="where it is")
    key: str = Field(description="its name there")
    value: JsonValue = Field(description="any JSON")


class MemoryBody(Value):
    """A value to remember."""

    value: JsonValue = Field(description="any JSON")
    ttl_s: float | None = Field(default=None, gt=0, description="seconds it is kept; without it, for good")


class SignalBody(Value):
    """What a waiting step is given."""

    value: JsonValue = Field(description="any JSON; it is the output of the step")


class Signalled(Value):
    """What became of a signal."""

    run_id: str = Field(description="the run")
    step: str = Field(description="the step")
    signal: str = Field(description="taken; or kept, since the step does not wait yet")


class ForkBody(Value):
    """From where a run is done anew."""

    from_step: str = Field(description="a step, or a name that a step answered to in the end")
    changes: dict[str, JsonValue] = Field(
        default_factory=dict, description='of the input, such as {"input.x": 5}; only what is done anew sees them'
    )


class TaskInfo(Value):
    """A Celery task that did steps of a run."""

    uuid: str = Field(description="Celery's")
    name: str = Field(description="the kind of its first step")
    state: str = Field(description="in Celery's words")
    steps: list[str] = Field(description="what it was sent for")
    worker: str | None = Field(description="who took it")
    received: float | None = Field(description="when, seconds since 1970")
    runtime: float | None = Field(description="seconds it took")


class TaskList(Value):
    """Celery tasks of a run."""

    tasks: list[TaskInfo] = Field(description="those that are remembered")


class Health(Value):
    """Whether the gateway can do its work."""

    status: str = Field(description="ok")


async def read(request: Request, model: type[Body]) -> Body:
    """The body of a request, which is a JSON object. Raises RequestRejected or ConfigError with every fault."""
    document = parse_json(await _json(request), source="body")
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, document, model), source="body") from error


async def read_chain(request: Request) -> ChainRequest:
    """The chain request in the body of a request, in its wire form or plain."""
    return chain_requests.load_request(parse_json(await _json(request), source="body"))


async def _json(request: Request) -> str:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestRejected(415, f"the body must be application/json, not {kind!r}", code="unsupported_media_type")
    try:
        text = (await request.body()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestRejected(400, f"the body is no text in UTF-8: byte {error.start} is wrong") from error
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        raise RequestRejected(400, "the body must be a JSON object; /openapi.json shows an example")
    return text


def document_body(model: type[BaseModel], example: Mapping[str, Any]) -> dict[str, Any]:
    """A request body for the OpenAPI document."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": dict(example)}}}}


REQUEST_BODIES: tuple[type[BaseModel], ...] = (TurnRequest, ChainRequest, ForkBody, SignalBody, MemoryBody)
"""The models of request bodies, for the OpenAPI document."""
