"""Bodies of requests and responses, with the examples of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, Field, ValidationError

from cantata.bounds import MAX_MEMORY_TTL_S
from cantata.client.records import BatchInfo, DayCost
from cantata.config import chain_requests
from cantata.config.documents import parse_json
from cantata.config.faults import faults_of
from cantata.errors import ConfigError
from cantata.flows.waits import Answer
from cantata.flows.wire import (
    AnswerOutcome,
    ChainRequest,
    ChainResponse,
    HistoryEntry,
    RunResult,
    RunStatus,
    SessionInfo,
    TurnRequest,
)
from cantata.operation.logs.lines import LogLine
from cantata.surfaces.http.rejections import RequestRejected
from cantata.values import BoundedJson, BoundedObject, JsonValue, NumberOfSeconds, Value

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
START = {"input": {"item": "tea", "count": 3}}
SIGNAL = {"value": {"approved": True}}
ANSWERS = {"answers": [{"id": "01936b2f7c4a1b2c3d4/approve", "value": {"approved": True}}]}
MAX_ANSWERS = 1000  # of one request
FORK = {"from_step": "letter", "changes": {"input.item": "coffee"}}
MEMORY = {"value": {"language": "de"}, "ttl_s": 86400}

BATCH = {"name": "labels", "agent": "label", "concurrency": 500}
DELIVERED = {"rows": [0, 1]}
MAX_OPEN = 10_000  # rows of a batch without a delivered result


class Links(Value):
    """URLs of a run."""

    self: str = Field(description="its state")
    events: str = Field(description="its events, as they happen")
    cancel: str = Field(description="cancels it, by POST")


class RunState(Value):
    """State of a run."""

    run_id: str = Field(description="the run")
    kind: str = Field(description="turn or chain; webhook: it posts to one")
    status: RunStatus = Field(description="its status")
    result: RunResult | ChainResponse | None = Field(
        default=None, description="its result, or its progress; null where only its id was requested"
    )
    links: Links = Field(description="its URLs")


class Refusals(Value):
    """Reasons why the token of the request may not do something with a run; empty where it may."""

    cancel: str = Field(description="to cancel it")
    retry: str = Field(description="to retry its unfinished part")
    fork: str = Field(description="to fork it from a step on")
    signal: str = Field(description="to signal its waiting step")


class SessionList(Value):
    """Sessions, most recently used first."""

    sessions: list[SessionInfo] = Field(description="most recently used first")


class SessionHistory(Value):
    """Messages of a session."""

    session: str = Field(description="its name")
    entries: list[HistoryEntry] = Field(description="oldest first")
    waiting: list[str] = Field(description="open runs of its turns: the one that is executed, then those that wait")


class Removed(Value):
    """Count of deleted entries or values."""

    removed: int = Field(description="number of entries or values")


class Namespaces(Value):
    """Memory namespaces with values."""

    namespaces: list[str] = Field(description="sorted")


class Keys(Value):
    """Keys in a memory namespace."""

    namespace: str = Field(description="its name")
    keys: list[str] = Field(description="sorted")


class MemoryValue(Value):
    """A value in memory."""

    namespace: str = Field(description="its namespace")
    key: str = Field(description="its key in the namespace")
    value: JsonValue = Field(description="any JSON")


class MemoryBody(Value):
    """A value to store in memory."""

    value: BoundedJson = Field(description="any JSON")
    ttl_s: NumberOfSeconds | None = Field(
        default=None, gt=0, le=MAX_MEMORY_TTL_S, description="seconds it is stored; without it, for ever"
    )


class StartBody(Value):
    """The start of a chain or workflow of the configuration."""

    input: BoundedObject = Field(
        default_factory=dict,
        description="the input of the chain; for a workflow, the arguments of its function by name",
    )
    timeout_s: NumberOfSeconds | None = Field(
        default=None, gt=0, le=30 * 86400, description="seconds the run may take; as configured if absent"
    )
    webhooks: list[str] = Field(
        default_factory=list,
        max_length=10,
        description="names of the configuration, or URLs, which get messages about the run",
    )


class SignalBody(Value):
    """The value for a waiting step."""

    value: BoundedJson = Field(description="any JSON; it is the output of the step")


class Signalled(Value):
    """Outcome of a signal."""

    run_id: str = Field(description="the run")
    step: str = Field(description="the step")
    signal: str = Field(description="taken; or kept, if the step does not wait yet")


class AnswersBody(Value):
    """Answers to steps that wait for a person."""

    answers: list[Answer] = Field(min_length=1, max_length=MAX_ANSWERS, description="each counts for itself")


class AnswersResult(Value):
    """Outcomes of answers."""

    answers: list[AnswerOutcome] = Field(description="in the order of the answers")


class ForkBody(Value):
    """The fork of a run."""

    from_step: str = Field(description="a step, or a name that a step had at the end of the run")
    changes: BoundedObject = Field(
        default_factory=dict,
        description='changes of the input, such as {"input.x": 5}; only steps that are executed again read them',
    )


class TaskInfo(Value):
    """A Celery task that executed steps of a run."""

    uuid: str = Field(description="Celery's id")
    name: str = Field(description="the kind of its first step")
    state: str = Field(description="Celery's state")
    steps: list[str] = Field(description="the steps in its message")
    worker: str | None = Field(description="the worker that received it")
    received: float | None = Field(description="seconds since 1970")
    runtime: float | None = Field(description="its duration in seconds")


class TaskList(Value):
    """Celery tasks of a run."""

    tasks: list[TaskInfo] = Field(description="the tasks that Flower stores")


class RunLogLines(Value):
    """Log lines of a run."""

    lines: list[LogLine] = Field(description="in the order in which they were logged")
    dropped: int = Field(description="number of older lines that were dropped")
    next: str | None = Field(description="the `after` of the next request; null if there were no lines")


class BatchBody(Value):
    """A batch to begin: its rows are submitted afterwards."""

    name: str = Field(description="unique for the tenant; the same name goes on with the same batch")
    agent: str | None = Field(
        None, description="the agent that gets the rows; exactly one of agent, team, chain and workflow"
    )
    team: str | None = Field(None, description="the team")
    chain: str | None = Field(None, description="the chain, by its name in the configuration")
    workflow: str | None = Field(None, description="the workflow in Python")
    columns: dict[str, str] = Field(
        default_factory=dict, description="field of a row → field of the input, such as text"
    )
    concurrency: int = Field(100, ge=1, le=MAX_OPEN, description="rows without a delivered result at most")
    budget_usd: float | None = Field(
        None, gt=0, description="no row is accepted that would probably make it cost more, in US dollars"
    )
    webhooks: list[str] = Field(
        default_factory=list,
        max_length=10,
        description="names of the configuration, or URLs, which get a message when it is over",
    )


class BatchList(Value):
    """Batches, newest first."""

    batches: list[BatchInfo] = Field(description="newest first")


class TenantList(Value):
    """Tenants whose data a token may see."""

    tenants: list[str] = Field(description="sorted; '' stands for what belongs to none")
    sees_all: bool = Field(description="whether the token is an operator's, which may choose one by `?tenant=`")
    is_complete: bool = Field(description="whether these are all, and not only some of very many")


class CostList(Value):
    """Costs by day."""

    costs: list[DayCost] = Field(description="the newest day first")


class RowsAccepted(Value):
    """Rows that were accepted."""

    accepted: int = Field(description="number of rows of this request that are submitted now")
    next: int = Field(description="the number of the row to go on with")
    batch: BatchInfo = Field(description="the batch")


class DeliveredBody(Value):
    """Rows whose results the caller has stored."""

    rows: list[int] = Field(max_length=MAX_OPEN, description="their numbers")


class Health(Value):
    """Health of the gateway."""

    status: str = Field(description="ok")


async def read_body(request: Request, model: type[Body]) -> Body:
    """Return the body of a request, which must be a JSON object. Raises RequestRejected, or ConfigError with every fault."""
    document = parse_json(await _json(request), source="body")
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, document, model), source="body") from error


async def read_chain(request: Request) -> ChainRequest:
    """Return the chain request in the body of a request, in its wire format or plain."""
    return chain_requests.load_request(parse_json(await _json(request), source="body"))


async def _json(request: Request) -> str:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestRejected(415, f"the body must be application/json, not {kind!r}", code="unsupported_media_type")
    try:
        text = (await request.body()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestRejected(400, f"the body is not valid UTF-8: byte {error.start}") from error
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        raise RequestRejected(400, "the body must be a JSON object; /openapi.json shows an example")
    return text


def document_body(model: type[BaseModel], example: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body for the OpenAPI document."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": dict(example)}}}
    }


REQUEST_BODIES: tuple[type[BaseModel], ...] = (
    TurnRequest, ChainRequest, StartBody, ForkBody, SignalBody, AnswersBody, MemoryBody, BatchBody, DeliveredBody,
)  # fmt: skip
"""The models of request bodies, for the OpenAPI document."""
