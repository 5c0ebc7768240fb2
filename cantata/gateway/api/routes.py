"""What is asked over HTTP: turns, chains, runs, sessions, memory, health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.responses import StreamingResponse

from cantata.client.runs import ChainRun, TurnRun
from cantata.errors import ConfigError
from cantata.gateway.api import bodies, event_stream
from cantata.gateway.api.bodies import document_body
from cantata.gateway.grants import Grant, Scope
from cantata.gateway.http_errors import ErrorBody, RequestRejected, refused
from cantata.gateway.outer_layer import PathName
from cantata.gateway.tenant_service import TenantService, kind_of
from cantata.models.wire import RUN_OVER, ChainRequest, ChainResponse, RunStatus, TurnRequest
from cantata.runs.results import REFUSALS
from cantata.state.sessions.conversations import fault_of

MAX_WAIT_S = 600.0
MAX_LISTED = 1000


def _service(request: Request) -> TenantService:
    service: TenantService = request.app.state.service
    return service


async def _grant(request: Request) -> Grant:
    grant: Grant = request.state.grant
    return grant


def needs(scope: Scope) -> Callable[[Request], Awaitable[Grant]]:
    """A dependency that answers the rights of whoever asks, and refuses a token without this scope."""

    async def granted(request: Request) -> Grant:
        grant = await _grant(request)
        grant.require(scope)
        return grant

    return granted


def tenant_with(scope: Scope) -> Callable[[Request], Awaitable[str]]:
    """The same, answering the tenant."""
    granted = needs(scope)

    async def tenant(request: Request) -> str:
        return (await granted(request)).tenant

    return tenant


ServiceDep = Annotated[TenantService, Depends(_service)]
ReaderTenant = Annotated[str, Depends(tenant_with("read"))]
"""The tenant of a token that may read."""
AdminTenant = Annotated[str, Depends(tenant_with("admin"))]
"""The tenant of a token that may change what is kept."""
ChatGrant = Annotated[Grant, Depends(needs("chat"))]
SubmitGrant = Annotated[Grant, Depends(needs("submit"))]
SignalGrant = Annotated[Grant, Depends(needs("signal"))]
CallerGrant = Annotated[Grant, Depends(_grant)]
"""The rights of a token; the service looks whether they are enough for this run."""
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="seconds to wait for the end of the run")]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED, description="how many at most")]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200, description="the same key gives the same run")]
Offset = Annotated[int, Query(ge=0, le=2**53, description="the offset after which to begin")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", description="the offset of the last event that came; it wins over `after`")]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": said}
    for status, said in {
        400: "the body is no JSON object",
        401: "no token, or one that is not known",
        403: "the token may not do this: `missing_scope`, `not_granted` or `own_run`; or a web page asks a gateway without tokens",
        413: "the body is too large",
        415: "the body is of another type",
        422: "everything that is wrong with the request",
        429: "too many requests; `Retry-After` says when to come again",
        503: "Redis cannot be reached, or nobody works",
    }.items()
}
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody, "description": "there is none, or it is another tenant's"}}

router = APIRouter(responses=ERRORS)
probes = APIRouter()


# --- turns and chains -------------------------------------------------------------------------------------------------------


@router.post(
    "/turns", status_code=202, response_model=bodies.RunState, tags=["turns"], openapi_extra=document_body(TurnRequest, bodies.TURN),
    responses={200: {"model": bodies.RunState, "description": "it is over"}},
)  # fmt: skip
async def submit_turn(
    request: Request, response: Response, service: ServiceDep, caller: ChatGrant, key: Key = None, wait: Wait = 0
) -> bodies.RunState:
    """Submit a user's turn for a team or an agent."""
    turn = await bodies.read(request, TurnRequest)
    return await accepted(await service.submit_turn(caller, turn, key), response, service, wait)


@router.post(
    "/chains", status_code=202, response_model=bodies.RunState, tags=["chains"], openapi_extra=document_body(ChainRequest, bodies.CHAIN),
    responses={
        200: {"model": bodies.RunState, "description": "it is over"},
        422: {"model": ChainResponse | ErrorBody, "description": "everything that is wrong with the chain, as a chain's response"},
    },
)  # fmt: skip
async def submit_chain(
    request: Request, response: Response, service: ServiceDep, caller: SubmitGrant, key: Key = None, wait: Wait = 0
) -> bodies.RunState | Response:
    """Submit a chain request."""
    try:
        run = await service.submit_chain(caller, await bodies.read_chain(request), key)
    except ConfigError as error:
        if error.code not in REFUSALS:
            raise
        return refused(error)
    return await accepted(run, response, service, wait)


async def accepted(run: TurnRun | ChainRun, response: Response, service: TenantService, wait_s: float = 0) -> bodies.RunState:
    """A run that was taken in, with its address in the answer's head; with its result, if it is over within `wait_s`."""
    is_over = bool(wait_s) and await service.is_over(run, wait_s)
    response.status_code = 200 if is_over else 202
    response.headers["Location"] = _links(run, service).self
    return await _state(run, service) if is_over else _bare(run, await service.call(run.status), service)


# --- runs -------------------------------------------------------------------------------------------------------------------


@router.get("/runs/{run_id}", tags=["runs"], responses=UNKNOWN)
async def show_run(run_id: PathName, service: ServiceDep, tenant: ReaderTenant, wait: Wait = 0) -> bodies.RunState:
    """How a run stands, and its result."""
    run = await service.run(tenant, run_id)
    if wait:
        await service.is_over(run, wait)
    return await _state(run, service)


@router.get(
    "/runs/{run_id}/events", tags=["runs"], response_class=Response,
    responses={
        **UNKNOWN,
        200: {"description": "server-sent events; `id` is the offset, `data` a run event", "content": {"text/event-stream": {}}},
        204: {"description": "it is over, and there are no events after this offset: do not come again"},
    },
)  # fmt: skip
async def follow_run(run_id: PathName, service: ServiceDep, tenant: ReaderTenant, after: Offset = 0, last_id: LastId = None) -> Response:
    """The events of a run as they come, up to and with `closed`."""
    place = after if last_id is None else _offset(last_id)
    run = await service.run(tenant, run_id)
    if place and await service.call(run.status) in RUN_OVER and not await event_stream.has_more(service, run, place):
        return Response(status_code=204)
    return StreamingResponse(event_stream.lines(service, run, place), media_type="text/event-stream", headers=event_stream.HEADERS)


@router.post("/runs/{run_id}/cancel", tags=["runs"], responses=UNKNOWN)
async def cancel_run(run_id: PathName, service: ServiceDep, caller: CallerGrant) -> bodies.RunState:
    """End a run; what its workers do is stopped within a second or two. One that is over stays as it ended."""
    await service.cancel(caller, run_id)
    return await _state(await service.run(caller.tenant, run_id), service)


@router.post(
    "/runs/{run_id}/signals/{step:path}", tags=["runs"], openapi_extra=document_body(bodies.SignalBody, bodies.SIGNAL),
    responses={**UNKNOWN, 409: {"model": ErrorBody, "description": "the step has had its value, or the run is over"}},
)  # fmt: skip
async def signal_run(request: Request, run_id: PathName, step: PathName, service: ServiceDep, caller: SignalGrant) -> bodies.Signalled:
    """Give a waiting step its value, such as an approval. It is kept for a step that does not wait yet."""
    body = await bodies.read(request, bodies.SignalBody)
    word = await service.signal(caller, run_id, step, body.value)
    if word == "unknown":
        near = await service.call((await service.run(caller.tenant, run_id)).nearest_step, step)
        raise RequestRejected(
            404, f"no step {step!r} of run {run_id!r} waits for a signal{f'; did you mean {near!r}?' if near and near != step else ''}"
        )
    if word == "unclear":
        raise RequestRejected(409, f"step {step!r} may be any of several of run {run_id!r}; name it by its whole id", code=word)
    if word == "full":
        message = f"run {run_id!r} keeps as many signals for steps that do not wait yet as it may; send it when {step!r} waits"
        raise RequestRejected(429, message, code="quota_exceeded", retry_after_s=5)
    if word not in ("taken", "kept"):
        raise RequestRejected(409, f"step {step!r} has had its value" if word == "over" else f"run {run_id!r} is over", code=word)
    return bodies.Signalled(run_id=run_id, step=step, signal=word)


async def _state(run: TurnRun | ChainRun, service: TenantService) -> bodies.RunState:
    result = await service.result(run)
    return bodies.RunState(run_id=run.run_id, kind=kind_of(run), status=result.status, result=result, links=_links(run, service))


def _bare(run: TurnRun | ChainRun, status: RunStatus, service: TenantService) -> bodies.RunState:
    return bodies.RunState(run_id=run.run_id, kind=kind_of(run), status=status, links=_links(run, service))


def _links(run: TurnRun | ChainRun, service: TenantService) -> bodies.Links:
    own = f"{service.prefix}/runs/{quote(run.run_id, safe='')}"
    return bodies.Links(self=own, events=f"{own}/events", cancel=f"{own}/cancel")


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise RequestRejected(422, f"Last-Event-ID is the offset of an event, a whole number, not {text[:40]!r}", code="bad_request")
    return int(text)


# --- sessions ---------------------------------------------------------------------------------------------------------------


@router.get("/sessions", tags=["sessions"])
async def list_sessions(service: ServiceDep, tenant: ReaderTenant, most: Limit = 100) -> bodies.SessionList:
    """The conversations that were used last."""
    return bodies.SessionList(sessions=await service.call(service.sessions(tenant).list, most))


@router.get("/sessions/{session}", tags=["sessions"], responses=UNKNOWN)
async def show_session(session: PathName, service: ServiceDep, tenant: ReaderTenant, most: Limit = 100) -> bodies.SessionHistory:
    """What was said in a conversation, oldest first, and the turns that are not over."""
    _check_session(session)
    own = service.sessions(tenant)
    entries = await service.call(own.history, session, most)
    waiting = await service.call(own.waiting, session)
    if not entries and not waiting:
        raise RequestRejected(404, f"there is no session {session!r}")
    return bodies.SessionHistory(session=session, entries=entries, waiting=waiting)


@router.delete("/sessions/{session}", tags=["sessions"])
async def clear_session(session: PathName, service: ServiceDep, tenant: AdminTenant) -> bodies.Removed:
    """Forget what was said in a conversation. A turn under way goes on, and is written down when it ends."""
    _check_session(session)
    return bodies.Removed(removed=await service.call(service.sessions(tenant).clear, session))


def _check_session(session: str) -> None:
    if fault := fault_of(session):
        raise ConfigError(fault, source="session")


# --- memory -----------------------------------------------------------------------------------------------------------------


@router.get("/memory", tags=["memory"])
async def list_namespaces(service: ServiceDep, tenant: ReaderTenant) -> bodies.Namespaces:
    """The namespaces that hold something."""
    return bodies.Namespaces(namespaces=await service.call(service.memory(tenant).namespaces))


@router.get("/memory/{namespace}", tags=["memory"])
async def list_keys(namespace: PathName, service: ServiceDep, tenant: ReaderTenant) -> bodies.Keys:
    """The keys of a namespace; none of one that holds nothing."""
    return bodies.Keys(namespace=namespace, keys=await service.call(service.memory(tenant).list_memories, namespace))


@router.get("/memory/{namespace}/{key}", tags=["memory"], responses=UNKNOWN)
async def show_memory(namespace: PathName, key: PathName, service: ServiceDep, tenant: ReaderTenant) -> bodies.MemoryValue:
    """A remembered value."""
    bank = service.memory(tenant)
    value = await service.call(bank.retrieve_memory, key, namespace)
    if value is None and not await service.call(bank.memory_exists, key, namespace):
        raise RequestRejected(404, f"nothing is remembered under {key!r} in {namespace!r}")
    return bodies.MemoryValue(namespace=namespace, key=key, value=value)


@router.put("/memory/{namespace}/{key}", tags=["memory"], openapi_extra=document_body(bodies.MemoryBody, bodies.MEMORY))
async def keep_memory(request: Request, namespace: PathName, key: PathName, service: ServiceDep, tenant: AdminTenant) -> bodies.MemoryValue:
    """Remember a value, in place of what was there."""
    body = await bodies.read(request, bodies.MemoryBody)
    await service.call(service.memory(tenant).store_memory, key, body.value, namespace, body.ttl_s)
    return bodies.MemoryValue(namespace=namespace, key=key, value=body.value)


@router.delete("/memory/{namespace}/{key}", tags=["memory"])
async def forget_memory(namespace: PathName, key: PathName, service: ServiceDep, tenant: AdminTenant) -> bodies.Removed:
    """Forget a value."""
    return bodies.Removed(removed=int(await service.call(service.memory(tenant).delete_memory, key, namespace)))


# --- health -----------------------------------------------------------------------------------------------------------------


@probes.get("/health", tags=["health"])
async def health() -> bodies.Health:
    """Whether the gateway's process lives."""
    return bodies.Health(status="ok")


@probes.get("/ready", tags=["health"], responses={503: ERRORS[503]})
async def ready(service: ServiceDep) -> bodies.Health:
    """Whether runs would be worked on now: Redis answers, and workers serve coordinator, agents and tools."""
    faults = await service.faults()
    if faults:
        raise RequestRejected(503, "; ".join(faults), code="not_ready", retry_after_s=1)
    return bodies.Health(status="ok")
