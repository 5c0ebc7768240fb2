"""HTTP routes: turns, chains, runs, sessions, memory, health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.responses import StreamingResponse

from cantata.client.records import REFUSALS
from cantata.client.runs import ChainRun, TurnRun
from cantata.client.tenant_client import result_of
from cantata.errors import ConfigError
from cantata.flows.submission import Submission
from cantata.flows.wire import ChainRequest, ChainResponse, RunStatus, TurnRequest, fault_of_session
from cantata.surfaces.gateway.api import bodies
from cantata.surfaces.gateway.api.bodies import document_body
from cantata.surfaces.gateway.grants import Grant, Scope
from cantata.surfaces.gateway.http_errors import chain_rejection
from cantata.surfaces.gateway.open_requests import OpenRequest
from cantata.surfaces.gateway.outer_layer import PathName
from cantata.surfaces.gateway.service import GatewayService
from cantata.surfaces.http import server_sent_events
from cantata.surfaces.http.rejections import ErrorBody, RequestRejected, check_signal

MAX_WAIT_S = 600.0
MAX_LISTED = 1000


def _service(request: Request) -> GatewayService:
    service: GatewayService = request.app.state.service
    return service


TenantChoice = Annotated[
    str | None,
    Query(max_length=200, description="for operators: the tenant that this concerns; empty for what belongs to none"),
]


async def _token(request: Request) -> Grant:
    grant: Grant = request.state.grant
    return grant


async def _grant(request: Request, tenant: TenantChoice = None) -> Grant:
    """Return the rights of the token over the tenant that an operator has chosen."""
    grant = (await _token(request)).for_tenant(tenant)
    request.state.tenant_of_request = grant.tenant  # for the access log
    return grant


async def _open_request(request: Request) -> OpenRequest:
    found: OpenRequest = request.state.open_request
    return found


def grant_with(scope: Scope) -> Callable[[Grant], Awaitable[Grant]]:
    """Return a dependency that gives the rights of the client, and rejects a token without this scope."""

    async def granted(grant: Annotated[Grant, Depends(_grant)]) -> Grant:
        grant.require(scope)
        return grant

    return granted


async def _visible_tenant(grant: Annotated[Grant, Depends(grant_with("read"))]) -> str | None:
    return grant.reads


async def _changed_tenant(grant: Annotated[Grant, Depends(grant_with("admin"))]) -> str:
    return grant.tenant


ServiceDep = Annotated[GatewayService, Depends(_service)]
ReaderTenant = Annotated[str | None, Depends(_visible_tenant)]
"""The tenant of a token that may read; None for an operator who has chosen none: all tenants."""
AdminTenant = Annotated[str, Depends(_changed_tenant)]
"""The tenant of a token that may change stored data."""
ChatGrant = Annotated[Grant, Depends(grant_with("chat"))]
SubmitGrant = Annotated[Grant, Depends(grant_with("submit"))]
SignalGrant = Annotated[Grant, Depends(grant_with("signal"))]
CallerGrant = Annotated[Grant, Depends(_grant)]
"""The rights of a token; the service checks them for the run."""
OpenRequestDep = Annotated[OpenRequest, Depends(_open_request)]
"""The request, to count it as one that stays open."""
Seconds = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="seconds to wait until the run is closed")]


async def _wait(this: OpenRequestDep, wait: Seconds = 0) -> float:
    if wait:
        this.wait()
    return wait


Wait = Annotated[float, Depends(_wait)]
"""How long to wait; the request is counted as one that stays open before anything is done."""
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED, description="maximum number")]
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="the same key gives the same run"),
]
Offset = Annotated[int, Query(ge=0, le=2**53, description="the offset after which the events start")]
LastId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="the offset of the last received event; it precedes `after`")
]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "the body is not a JSON object",
        401: "no token, or an unknown one",
        403: "the token may not do this: `missing_scope`, `not_granted` or `own_run`; or a web page calls a gateway without tokens",
        413: "the body is too large",
        415: "the body has another type",
        422: "all faults of the request",
        429: "too many requests, open connections or failed logins; `Retry-After` has the seconds to wait",
        503: "Redis cannot be reached, or no worker serves a queue",
    }.items()
}
UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "it does not exist, or belongs to another tenant"}
}

router = APIRouter(responses=ERRORS)
probes = APIRouter()


# --- turns and chains -------------------------------------------------------------------------------------------------------


@router.post(
    "/turns", status_code=202, response_model=bodies.RunState, tags=["turns"], openapi_extra=document_body(TurnRequest, bodies.TURN),
    responses={200: {"model": bodies.RunState, "description": "the run is closed"}},
)  # fmt: skip
async def submit_turn(
    request: Request, response: Response, service: ServiceDep, caller: ChatGrant, wait: Wait, key: Key = None
) -> bodies.RunState:
    """Submit a user's turn for a team or an agent."""
    turn = await bodies.read_body(request, TurnRequest)
    return await accepted(await service.call(service.granted(caller).submit_turn, turn, key), response, service, wait)


@router.post(
    "/chains", status_code=202, response_model=bodies.RunState, tags=["chains"], openapi_extra=document_body(ChainRequest, bodies.CHAIN),
    responses={
        200: {"model": bodies.RunState, "description": "the run is closed"},
        422: {"model": ChainResponse | ErrorBody, "description": "all faults of the chain, as a chain response"},
    },
)  # fmt: skip
async def submit_chain(
    request: Request, response: Response, service: ServiceDep, caller: SubmitGrant, wait: Wait, key: Key = None
) -> bodies.RunState | Response:
    """Submit a chain request."""
    try:
        run = await service.call(service.granted(caller).submit_chain, await bodies.read_chain(request), key)
    except ConfigError as error:
        if error.code not in REFUSALS:
            raise
        return chain_rejection(error)
    return await accepted(run, response, service, wait)


def _named_start(kind: Literal["chain", "workflow"], what: str) -> None:
    async def start(
        request: Request,
        response: Response,
        name: PathName,
        service: ServiceDep,
        caller: SubmitGrant,
        wait: Wait,
        key: Key = None,
    ) -> bodies.RunState:
        body = await bodies.read_body(request, bodies.StartBody)
        submission = Submission(webhooks=body.webhooks, timeout_s=body.timeout_s)
        run = await service.call(service.granted(caller).submit_named, kind, name, body.input, submission, key)
        return await accepted(run, response, service, wait)

    start.__name__, start.__doc__ = f"start_{kind}", f"Submit {what} of the configuration by its name, with its input."
    router.post(
        f"/{kind}s/{{name}}", status_code=202, response_model=bodies.RunState, tags=[f"{kind}s"],
        openapi_extra=document_body(bodies.StartBody, bodies.START),
        responses={**UNKNOWN, 200: {"model": bodies.RunState, "description": "the run is closed"}},
    )(start)  # fmt: skip


_named_start("chain", "a chain")
_named_start("workflow", "a workflow in Python")


async def accepted(
    run: TurnRun | ChainRun, response: Response, service: GatewayService, wait_s: float = 0
) -> bodies.RunState:
    """Answer with an accepted run and its URL in the header `Location`; with its result, if it is closed within `wait_s`."""
    is_over = bool(wait_s) and await service.is_over(run, wait_s)
    response.status_code = 200 if is_over else 202
    response.headers["Location"] = _links(run, service).self
    return await _state(run, service) if is_over else _bare(run, await service.call.when_free(run.status), service)


# --- runs -------------------------------------------------------------------------------------------------------------------


@router.get("/runs/{run_id}", tags=["runs"], responses=UNKNOWN)
async def show_run(run_id: PathName, service: ServiceDep, tenant: ReaderTenant, wait: Wait) -> bodies.RunState:
    """Return the state of a run, and its result."""
    run = await service.call(service.of(tenant).find, run_id)
    if wait:
        await service.is_over(run, wait)
    return await _state(run, service)


@router.get(
    "/runs/{run_id}/events", tags=["runs"], response_class=Response,
    responses={
        **UNKNOWN,
        200: {"description": "server-sent events; `id` is the offset, `data` a run event", "content": {"text/event-stream": {}}},
        204: {"description": "the run is closed, and has no events after this offset: do not reconnect"},
    },
)  # fmt: skip
async def follow_run(
    run_id: PathName,
    service: ServiceDep,
    tenant: ReaderTenant,
    this: OpenRequestDep,
    after: Offset = 0,
    last_id: LastId = None,
) -> Response:
    """Stream the events of a run, up to and including `closed`."""
    this.wait()
    offset = after if last_id is None else server_sent_events.offset_of(last_id)
    if not await service.call(service.of(tenant).has_events, run_id, offset):
        return Response(status_code=204)
    lines = server_sent_events.lines(service.streams.runs, run_id, offset)
    return StreamingResponse(lines, media_type=server_sent_events.MEDIA_TYPE, headers=server_sent_events.HEADERS)


@router.post("/runs/{run_id}/cancel", tags=["runs"], responses=UNKNOWN)
async def cancel_run(run_id: PathName, service: ServiceDep, caller: CallerGrant) -> bodies.RunState:
    """Cancel a run; its workers stop within a second or two. A closed run does not change."""
    await service.call(service.granted(caller).cancel, run_id)
    return await _state(await service.call(service.of(caller.reads).find, run_id), service)


@router.post(
    "/runs/{run_id}/signals/{step:path}", tags=["runs"], openapi_extra=document_body(bodies.SignalBody, bodies.SIGNAL),
    responses={**UNKNOWN, 409: {"model": ErrorBody, "description": "the step already has its value, or the run is closed"}},
)  # fmt: skip
async def signal_run(
    request: Request, run_id: PathName, step: PathName, service: ServiceDep, caller: SignalGrant
) -> bodies.Signalled:
    """Signal a waiting step: a value, such as an approval. The signal of a step that does not wait yet is kept."""
    body = await bodies.read_body(request, bodies.SignalBody)
    answer = await service.call(service.granted(caller).signal, run_id, step, body.value)
    check_signal(answer)
    return bodies.Signalled(run_id=run_id, step=step, signal=answer.outcome)


async def _state(run: TurnRun | ChainRun, service: GatewayService) -> bodies.RunState:
    result = await service.call.when_free(result_of, run)
    return _bare(run, result.status, service).model_copy(update={"result": result})


def _bare(run: TurnRun | ChainRun, status: RunStatus, service: GatewayService) -> bodies.RunState:
    return bodies.RunState(run_id=run.run_id, kind=run.kind, status=status, links=_links(run, service))


def _links(run: TurnRun | ChainRun, service: GatewayService) -> bodies.Links:
    own = f"{service.prefix}/runs/{quote(run.run_id, safe='')}"
    return bodies.Links(self=own, events=f"{own}/events", cancel=f"{own}/cancel")


# --- tenants ----------------------------------------------------------------------------------------------------------------


@router.get("/tenants", tags=["runs"])
async def list_tenants(service: ServiceDep, caller: Annotated[Grant, Depends(_token)]) -> bodies.TenantList:
    """Return the tenants whose data this token may see: for an operator those that keep runs, sessions, schedules or batches."""
    caller.require("read")
    if not caller.is_operator:
        return bodies.TenantList(tenants=[caller.tenant], sees_all=False, is_complete=True)
    found, is_complete = await service.call(service.client.tenants)
    return bodies.TenantList(tenants=found, sees_all=True, is_complete=is_complete)


# --- sessions ---------------------------------------------------------------------------------------------------------------


@router.get("/sessions", tags=["sessions"])
async def list_sessions(service: ServiceDep, tenant: ReaderTenant, most: Limit = 100) -> bodies.SessionList:
    """Return the most recently used sessions."""
    return bodies.SessionList(sessions=await service.call(service.of(tenant).sessions.list, most))


@router.get("/sessions/{session}", tags=["sessions"], responses=UNKNOWN)
async def show_session(
    session: PathName, service: ServiceDep, tenant: ReaderTenant, most: Limit = 100
) -> bodies.SessionHistory:
    """Return the messages of a session, oldest first, and its open turns."""
    entries, waiting = await service.call(service.of(tenant).sessions.conversation, session, most)
    return bodies.SessionHistory(session=session, entries=list(entries), waiting=list(waiting))


@router.delete("/sessions/{session}", tags=["sessions"])
async def clear_session(session: PathName, service: ServiceDep, tenant: AdminTenant) -> bodies.Removed:
    """Delete the messages of a session. An open turn continues, and adds its messages when it ends."""
    if fault := fault_of_session(session):
        raise ConfigError(fault, source="session")
    sessions = service.of(tenant).sessions
    removed = await service.recorded(tenant, "session.clear", session, lambda: sessions.clear(session))
    return bodies.Removed(removed=removed)


# --- memory -----------------------------------------------------------------------------------------------------------------


@router.get("/memory", tags=["memory"])
async def list_namespaces(service: ServiceDep, tenant: ReaderTenant) -> bodies.Namespaces:
    """Return the namespaces with values."""
    return bodies.Namespaces(namespaces=await service.call(service.of(tenant).memory.namespaces))


@router.get("/memory/{namespace}", tags=["memory"])
async def list_keys(namespace: PathName, service: ServiceDep, tenant: ReaderTenant) -> bodies.Keys:
    """Return the keys of a namespace; none of one without values."""
    return bodies.Keys(namespace=namespace, keys=await service.call(service.of(tenant).memory.list_memories, namespace))


@router.get("/memory/{namespace}/{key}", tags=["memory"], responses=UNKNOWN)
async def show_memory(
    namespace: PathName, key: PathName, service: ServiceDep, tenant: ReaderTenant
) -> bodies.MemoryValue:
    """Return a value in memory."""
    bank = service.of(tenant).memory
    value = await service.call(bank.retrieve_memory, key, namespace)
    if value is None and not await service.call(bank.memory_exists, key, namespace):
        raise RequestRejected(404, f"memory namespace {namespace!r} has no key {key!r}")
    return bodies.MemoryValue(namespace=namespace, key=key, value=value)


@router.put("/memory/{namespace}/{key}", tags=["memory"], openapi_extra=document_body(bodies.MemoryBody, bodies.MEMORY))
async def keep_memory(
    request: Request, namespace: PathName, key: PathName, service: ServiceDep, tenant: AdminTenant
) -> bodies.MemoryValue:
    """Store a value, in place of a previous one."""
    body = await bodies.read_body(request, bodies.MemoryBody)
    bank = service.of(tenant).memory
    await service.recorded(
        tenant, "memory.store", f"{namespace}/{key}", lambda: bank.store_memory(key, body.value, namespace, body.ttl_s)
    )
    return bodies.MemoryValue(namespace=namespace, key=key, value=body.value)


@router.delete("/memory/{namespace}/{key}", tags=["memory"])
async def forget_memory(namespace: PathName, key: PathName, service: ServiceDep, tenant: AdminTenant) -> bodies.Removed:
    """Delete a value."""
    bank = service.of(tenant).memory
    removed = await service.recorded(
        tenant, "memory.delete", f"{namespace}/{key}", lambda: bank.delete_memory(key, namespace)
    )
    return bodies.Removed(removed=int(removed))


# --- health -----------------------------------------------------------------------------------------------------------------


@probes.get("/health", tags=["health"])
async def health() -> bodies.Health:
    """Return whether the gateway's process is alive."""
    return bodies.Health(status="ok")


@probes.get("/ready", tags=["health"], responses={503: ERRORS[503]})
async def ready(service: ServiceDep) -> bodies.Health:
    """Return whether runs would be executed now: Redis answers, workers serve coordinator, agents and tools, and a worker sweeps."""
    faults = await service.readiness.faults()
    if faults:
        raise RequestRejected(503, "; ".join(faults), code="not_ready", retry_after_s=1)
    return bodies.Health(status="ok")
