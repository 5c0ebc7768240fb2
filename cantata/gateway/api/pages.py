"""What the run pages ask for: runs found again, drawn as graphs, done anew; and the pages themselves."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from cantata.dashboard.pages import assets
from cantata.dashboard.pages.page_views import GraphView, StepDetail
from cantata.gateway.access import PAGES
from cantata.gateway.api import bodies
from cantata.gateway.api.bodies import document_body
from cantata.gateway.api.routes import ERRORS, UNKNOWN, CallerGrant, Key, Limit, ReaderTenant, ServiceDep, accepted
from cantata.gateway.http_errors import ErrorBody, RequestRejected
from cantata.gateway.outer_layer import PathName
from cantata.models.wire import RunStatus
from cantata.state.runs.listing import MAX_SEARCH_CHARS, RunList

MAX_OPENED = 20

Statuses = Annotated[list[RunStatus] | None, Query(alias="status", description="only runs that stand so; may be given several times")]
Kind = Annotated[Literal["turn", "chain"] | None, Query(description="only runs of this kind")]
SearchText = Annotated[str, Query(max_length=MAX_SEARCH_CHARS, description="only runs with this in their id, title, session or labels")]
Before = Annotated[str | None, Query(max_length=220, description="`next` of the page before: what follows it")]
Opened = Annotated[list[str] | None, Query(alias="open", max_length=MAX_OPENED, description="a map whose items are to be told too")]

Signalled = Annotated[str | None, Query(max_length=2000, description="the step that a signal would be for")]

router = APIRouter(responses=ERRORS)
static = APIRouter(include_in_schema=False)


@router.get("/runs", tags=["runs"])
async def list_runs(
    service: ServiceDep,
    tenant: ReaderTenant,
    status: Statuses = None,
    kind: Kind = None,
    q: SearchText = "",
    before: Before = None,
    most: Limit = 20,
) -> RunList:
    """Runs, newest first. A page may be short, or empty, though `next` is set: it was looked for long enough, and more may follow."""
    return await service.call(service.pages.list, tenant, statuses=status or (), kind=kind, text=q, before=before, limit=most)


@router.get("/runs/{run_id}/graph", tags=["runs"], responses=UNKNOWN, response_model=GraphView)
async def show_graph(run_id: PathName, service: ServiceDep, tenant: ReaderTenant, opened: Opened = None) -> Response:
    """A run's steps and edges as they stand. The items of a map are counted; of one that is opened the first are told as steps."""
    graph = await service.call(lambda: service.pages.graph(tenant, run_id, opened=opened or ()).model_dump_json())
    return Response(graph, media_type="application/json")


@router.get("/runs/{run_id}/steps/{step_id:path}", tags=["runs"], responses=UNKNOWN, response_model=StepDetail)
async def show_step(run_id: PathName, step_id: PathName, service: ServiceDep, tenant: ReaderTenant) -> Response:
    """A step with its inputs, its output, its attempts, and what was said if it asked a model. Large values are cut."""
    step = await service.call(lambda: service.pages.step(tenant, run_id, step_id).model_dump_json())
    return Response(step, media_type="application/json")


@router.get("/runs/{run_id}/tasks", tags=["runs"], responses=UNKNOWN)
async def list_tasks(run_id: PathName, service: ServiceDep, tenant: ReaderTenant) -> bodies.TaskList:
    """The Celery tasks of a run, where they are known: in Flower, not here."""
    await service.run(tenant, run_id)
    return bodies.TaskList(tasks=[])


@router.get("/runs/{run_id}/refusals", tags=["runs"], responses=UNKNOWN)
async def show_refusals(run_id: PathName, service: ServiceDep, caller: CallerGrant, step: Signalled = None) -> bodies.Refusals:
    """Why this token may not do what the run pages have buttons for; empty texts for what it may."""
    caller.require("read")
    return bodies.Refusals.model_validate(await service.refusals(caller, run_id, step))


@router.post(
    "/runs/{run_id}/retry", status_code=202, tags=["runs"],
    responses={**UNKNOWN, 422: {"model": ErrorBody, "description": "it is under way, or succeeded: there is nothing to do anew"}},
)  # fmt: skip
async def retry_run(response: Response, run_id: PathName, service: ServiceDep, caller: CallerGrant, key: Key = None) -> bodies.RunState:
    """Do anew what a run left unfinished that failed, was cancelled or ran out of time, as a new run; the rest is taken over."""
    return await accepted(await service.retry(caller, run_id, key), response, service)


@router.post(
    "/runs/{run_id}/fork", status_code=202, tags=["runs"], responses=UNKNOWN,
    openapi_extra=document_body(bodies.ForkBody, bodies.FORK),
)  # fmt: skip
async def fork_run(
    request: Request, response: Response, run_id: PathName, service: ServiceDep, caller: CallerGrant, key: Key = None
) -> bodies.RunState:
    """Do a run that is over anew from a step on, as a new run; what lies upstream is taken over as it ended."""
    body = await bodies.read(request, bodies.ForkBody)
    return await accepted(await service.fork(caller, run_id, body.from_step, body.changes, key), response, service)


# --- the pages themselves ---------------------------------------------------------------------------------------------------


@static.get("/")
async def home(service: ServiceDep) -> Response:
    """To the pages."""
    return RedirectResponse(f"{service.prefix}{PAGES}/")


@static.get(f"{PAGES}/static/{{path:path}}")
async def asset(request: Request, path: str) -> Response:
    """A script, a style, an image of the pages."""
    found = assets.asset(path)
    if found is None:
        raise RequestRejected(404, f"the pages have no file {path!r}")
    return _file(request, found)


@static.get(PAGES)
@static.get(f"{PAGES}/{{path:path}}")
async def page(request: Request, service: ServiceDep, path: str = "") -> Response:
    """The document of every page."""
    return _file(request, assets.index(api=service.prefix, base=service.prefix + PAGES, flower=request.app.state.flower))


def _file(request: Request, found: assets.Asset) -> Response:
    headers = {**assets.HEADERS, "Cache-Control": assets.CACHE, "ETag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
