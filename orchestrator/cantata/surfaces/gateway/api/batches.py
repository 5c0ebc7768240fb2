"""HTTP routes of batches: begin, submit rows in pieces, follow, read results by page, acknowledge them, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from cantata.bounds import OutOfBoundsError, read_json
from cantata.client.failures import StreamsEnded
from cantata.client.records import Batches, BatchInfo, BatchPage, BatchTarget, Row, batch_target
from cantata.errors import CantataError, ConfigError, Fault
from cantata.flows.wire import ChainNode, ChainRequest, TurnRequest
from cantata.surfaces.gateway.api import bodies
from cantata.surfaces.gateway.api.bodies import document_body
from cantata.surfaces.gateway.api.routes import (
    ERRORS,
    UNKNOWN,
    CallerGrant,
    Limit,
    OpenRequestDep,
    ReaderTenant,
    ServiceDep,
)
from cantata.surfaces.gateway.grants import STARTS, Grant
from cantata.surfaces.gateway.http_errors import rejection
from cantata.surfaces.gateway.outer_layer import PathName
from cantata.surfaces.gateway.service import GatewayService
from cantata.surfaces.http.rejections import ErrorBody, RequestRejected
from cantata.surfaces.http.server_sent_events import HEADERS, KEEP_ALIVE_S, MEDIA_TYPE

ROWS = '{"text": "Where is my order?"}\n{"text": "I want my money back."}\n'
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": ErrorBody, "description": "its state does not allow this, or it is another"}
}
Start = Annotated[int, Query(ge=0, le=2**40, description="the number of the first row, from 0")]

router = APIRouter(responses={**ERRORS, **UNKNOWN}, tags=["batches"])


def _batches(service: GatewayService, tenant: str | None) -> Batches:
    return service.of(tenant).batches


def _check(service: GatewayService, grant: Grant, target: BatchTarget) -> None:
    """Raise RequestRejected if a token may not use the receiver of a batch, ConfigError if there is none of this name."""
    if target.kind in ("agent", "team"):
        grant.require(STARTS["turn"])
        grant.check_turn(TurnRequest.model_validate({"text": "", target.kind: target.name}), service.client.definitions)
        return
    grant.require(STARTS["chain"])
    known = service.client.definitions.chains if target.kind == "chain" else service.client.definitions.workflows
    if target.name not in known:
        raise ConfigError(f"the configuration has no {target.kind} {target.name!r}", source="batch")
    node = ChainNode(node_id=target.name, kind=target.kind, name=target.name)
    grant.check_chain(ChainRequest(nodes=[node], entry_node=target.name))


def _own(service: GatewayService, grant: Grant, name: str, *, may_be_unreadable: bool = False) -> None:
    """Check that there is a batch of this name, and that the token could have begun it."""
    batches = _batches(service, grant.tenant)
    known = batches.known(name)
    if may_be_unreadable and known and known.unreadable:
        grant.require_unlimited("this batch cannot be read")
    else:
        _check(service, grant, batches.find(name).target)


@router.get("/batches")
async def list_batches(service: ServiceDep, tenant: ReaderTenant, most: Limit = 20) -> bodies.BatchList:
    """Return the newest batches."""
    batches = _batches(service, tenant)
    return bodies.BatchList(
        batches=[*await service.call(batches.newest_of_all if tenant is None else batches.newest, most)]
    )


@router.post(
    "/batches", status_code=201, responses=CONFLICT, openapi_extra=document_body(bodies.BatchBody, bodies.BATCH), response_model=BatchInfo
)  # fmt: skip
async def begin_batch(request: Request, response: Response, service: ServiceDep, caller: CallerGrant) -> BatchInfo:
    """Begin a batch, or go on with the one of this name, with this concurrency and budget."""
    body = await bodies.read_body(request, bodies.BatchBody)

    def begin() -> BatchInfo:
        target = batch_target(agent=body.agent, team=body.team, chain=body.chain, workflow=body.workflow)
        _check(service, caller, target)
        _batches(service, caller.tenant).check_target(target, body.columns)
        return _batches(service, caller.tenant).open(
            body.name,
            target,
            columns=body.columns,
            concurrency=body.concurrency,
            budget_usd=body.budget_usd,
            labels=caller.labels(),
            webhooks=body.webhooks,
        )

    found = await service.call(begin)
    response.headers["Location"] = f"{service.prefix}/batches/{found.name}"
    return found


@router.get("/batches/{name}")
async def show_batch(name: PathName, service: ServiceDep, tenant: ReaderTenant) -> BatchInfo:
    """Return a batch as it is now."""
    return await service.call(_batches(service, tenant).find, name)


@router.get(
    "/batches/{name}/events", response_class=Response,
    responses={200: {"description": "server-sent events; `data` is the batch, when it has changed", "content": {"text/event-stream": {}}}},
)  # fmt: skip
async def follow_batch(name: PathName, service: ServiceDep, tenant: ReaderTenant, this: OpenRequestDep) -> Response:
    """Stream the state of a batch whenever it changes, until it is done or cancelled."""
    this.wait()
    batches = _batches(service, tenant)
    first = await service.call(batches.find, name)

    async def lines() -> AsyncIterator[str]:
        yield f"event: batch\ndata: {first.model_dump_json()}\n\n"
        if first.is_over:
            return
        with service.streams.batches.follow(batches.key_of(name), first) as follower:
            while True:
                try:
                    update = await follower.changed(KEEP_ALIVE_S)
                except StreamsEnded:
                    return  # the client reconnects, to another server
                except CantataError as error:
                    yield f"event: error\ndata: {rejection(error).body.model_dump_json()}\n\n"
                    return
                yield ": still here\n\n" if update is None else f"event: batch\ndata: {update.text}\n\n"
                if update and update.batch.is_over:
                    return

    return StreamingResponse(lines(), media_type=MEDIA_TYPE, headers=HEADERS)


@router.post(
    "/batches/{name}/rows", status_code=202, responses=CONFLICT, response_model=bodies.RowsAccepted,
    openapi_extra={"requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": ROWS}}}},
)  # fmt: skip
async def submit_rows(
    request: Request, name: PathName, service: ServiceDep, caller: CallerGrant, start: Start = 0, last: bool = False
) -> bodies.RowsAccepted:
    """Submit rows as JSON lines, as many as may be open; go on at `next`. With `last` no row follows. A repeated request is harmless.

    429 if none may be open: read results, acknowledge them, and repeat.
    """
    rows = _rows(await request.body(), start)

    def submit() -> bodies.RowsAccepted:
        _own(service, caller, name)
        batches = _batches(service, caller.tenant)
        accepted, after, batch = batches.add_rows(name, rows, caller.labels(), start=start, last=last)
        return bodies.RowsAccepted(accepted=accepted, next=after, batch=batch)

    return await service.call(submit)


def _rows(body: bytes, start: int) -> dict[int, Row]:
    """Return the rows of a request by their numbers. Raises RequestRejected, ConfigError."""
    found: dict[int, Row] = {}
    try:
        lines = body.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise RequestRejected(400, f"the body is not valid UTF-8: byte {error.start}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = read_json(line, "the row")
        except OutOfBoundsError as error:
            raise ConfigError([replace(fault, line=number) for fault in error.faults], source="body") from error
        except ValueError as error:
            raise ConfigError([Fault(f"no JSON: {error}", line=number)], source="body") from error
        if not isinstance(row, (dict, str)):
            raise ConfigError([Fault("expected an object or a text in each line", line=number)], source="body")
        found[start + len(found)] = row
    return found


@router.get("/batches/{name}/results")
async def list_results(
    name: PathName, service: ServiceDep, tenant: ReaderTenant, start: Start = 0, most: Limit = 100, failed: bool = False
) -> BatchPage:
    """Return results that were not delivered, by the numbers of their rows; with `failed`, the delivered rows that failed."""
    batches = _batches(service, tenant)
    return await service.call(batches.failed if failed else batches.results, name, start, most)


@router.get(
    "/batches/{name}/download", response_class=Response,
    responses={200: {"description": "results as JSON lines", "content": {"application/x-ndjson": {}}}},
)  # fmt: skip
async def download_results(
    name: PathName, service: ServiceDep, tenant: ReaderTenant, this: OpenRequestDep, failed: bool = False
) -> Response:
    """Return all results that were not delivered, or all delivered rows that failed, as JSON lines."""
    this.wait()
    batches = _batches(service, tenant)
    read: Callable[..., BatchPage] = batches.failed if failed else batches.results
    first = await service.call(read, name)

    async def lines() -> AsyncIterator[str]:
        page = first
        while True:
            yield "".join(f"{row.model_dump_json()}\n" for row in page.rows)
            if page.next is None:
                return
            page = await service.call.when_free(read, name, page.next)

    headers = {"Content-Disposition": f'attachment; filename="{name}.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


@router.post("/batches/{name}/delivered", openapi_extra=document_body(bodies.DeliveredBody, bodies.DELIVERED))
async def acknowledge_results(request: Request, name: PathName, service: ServiceDep, caller: CallerGrant) -> BatchInfo:
    """Record that the caller has stored the results of rows: their runs are deleted, and they are not returned again."""
    body = await bodies.read_body(request, bodies.DeliveredBody)

    def acknowledge() -> BatchInfo:
        _own(service, caller, name)
        return _batches(service, caller.tenant).acknowledge(name, body.rows)

    return await service.call(acknowledge)


@router.post("/batches/{name}/retry", responses=CONFLICT)
async def retry_batch(name: PathName, service: ServiceDep, caller: CallerGrant) -> BatchInfo:
    """Run the failed rows of a batch that is done again; read and acknowledge their results as before.

    With a budget, as many run as it pays: read results, acknowledge them, and repeat this until the batch is done. 429 if none may run now.
    """

    def act() -> BatchInfo:
        _own(service, caller, name)
        return _batches(service, caller.tenant).retry_rows(name, caller.labels())

    return await service.call(act)


def _change(what: str, description: str) -> None:
    async def change(name: PathName, service: ServiceDep, caller: CallerGrant) -> BatchInfo:
        def act() -> BatchInfo:
            _own(service, caller, name, may_be_unreadable=what == "cancel")
            return BATCH_ACTIONS[what](_batches(service, caller.tenant), name)

        return await service.call(act)

    change.__name__, change.__doc__ = f"{what}_batch", description
    router.post(f"/batches/{{name}}/{what}", responses=CONFLICT)(change)


BATCH_ACTIONS: dict[str, Callable[[Batches, str], BatchInfo]] = {
    "pause": Batches.pause,
    "resume": Batches.resume,
    "cancel": Batches.cancel,
}
_change("pause", "Submit no more rows; open ones go on.")
_change("resume", "Go on with a paused batch.")
_change("cancel", "End a batch for good, and cancel its open rows.")
