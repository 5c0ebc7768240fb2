"""Routes of the run pages: lists, graphs, steps and log lines of runs, retry and fork, and the files of the pages."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from cantata.bounds import FIRST_INSTANT_S, LAST_INSTANT_S
from cantata.client.graphs.page_views import GraphView, RunComparison, StepDetail
from cantata.client.records import MAX_DAYS, MAX_SEARCH_CHARS, RunCounts, RunList, at_least, of_step
from cantata.flows.wire import RunStatus
from cantata.surfaces.gateway.access import PAGES
from cantata.surfaces.gateway.api import bodies
from cantata.surfaces.gateway.api.bodies import document_body
from cantata.surfaces.gateway.api.routes import (
    ERRORS,
    UNKNOWN,
    CallerGrant,
    Key,
    Limit,
    ReaderTenant,
    ServiceDep,
    accepted,
)
from cantata.surfaces.gateway.outer_layer import PathName
from cantata.surfaces.http.rejections import ErrorBody, RequestRejected
from cantata.surfaces.pages import assets

MAX_OPENED = 20

Statuses = Annotated[
    list[RunStatus] | None, Query(alias="status", description="only runs with this status; may be repeated")
]
Kind = Annotated[Literal["turn", "chain", "webhook"] | None, Query(description="only runs of this kind")]
SearchText = Annotated[
    str, Query(max_length=MAX_SEARCH_CHARS, description="only runs with this in their id, title, session or labels")
]
Since = Annotated[
    float | None,
    Query(ge=FIRST_INSTANT_S, le=LAST_INSTANT_S, description="only runs accepted since then, seconds since 1970"),
]
Until = Annotated[
    float | None,
    Query(ge=FIRST_INSTANT_S, le=LAST_INSTANT_S, description="only runs accepted until then, seconds since 1970"),
]
Days = Annotated[int, Query(ge=1, le=MAX_DAYS, description="number of days")]
Before = Annotated[str | None, Query(max_length=220, description="`next` of the previous page")]
Opened = Annotated[
    list[str] | None, Query(alias="open", max_length=MAX_OPENED, description="a map whose items are included")
]

Signalled = Annotated[str | None, Query(max_length=2000, description="the step of a signal")]
After = Annotated[
    str,
    Query(
        pattern=r"^[0-9]{1,15}-[0-9]{1,10}$", description="the `id` of the last known line; only later lines are sent"
    ),
]
Level = Literal["debug", "info", "warning", "error", "critical"]

router = APIRouter(responses=ERRORS)
static = APIRouter(include_in_schema=False)


@router.get("/runs", tags=["runs"])
async def list_runs(
    service: ServiceDep,
    tenant: ReaderTenant,
    status: Statuses = None,
    kind: Kind = None,
    q: SearchText = "",
    since: Since = None,
    until: Until = None,
    before: Before = None,
    most: Limit = 20,
) -> RunList:
    """Return runs, newest first. A page may be short or empty although `next` is set: the search of a page is bounded."""
    found = service.of(tenant).list
    return await service.call(
        found, statuses=status or (), kind=kind, text=q, since=since, until=until, before=before, limit=most
    )


@router.get("/runs/counts", tags=["runs"])
async def count_runs(
    service: ServiceDep, tenant: ReaderTenant, kind: Kind = None, since: Since = None, until: Until = None
) -> RunCounts:
    """Return the number of runs by status. Of very many, only the newest are counted."""
    return await service.call(service.of(tenant).counts, kind=kind, since=since, until=until)


@router.get("/costs", tags=["runs"])
async def list_costs(service: ServiceDep, tenant: ReaderTenant, days: Days = 14) -> bodies.CostList:
    """Return the cost of model calls by day, the newest first."""
    return bodies.CostList(costs=[*await service.call(service.of(tenant).costs, days)])


@router.get("/runs/{run_id}/graph", tags=["runs"], responses=UNKNOWN, response_model=GraphView)
async def show_graph(run_id: PathName, service: ServiceDep, tenant: ReaderTenant, opened: Opened = None) -> Response:
    """Return the current steps and edges of a run. Items of a map are counted; the first items of an opened map are steps."""
    graph = await service.call(lambda: service.pages.graph(tenant, run_id, opened=opened or ()).model_dump_json())
    return Response(graph, media_type="application/json")


@router.get("/runs/{run_id}/steps/{step_id:path}", tags=["runs"], responses=UNKNOWN, response_model=StepDetail)
async def show_step(run_id: PathName, step_id: PathName, service: ServiceDep, tenant: ReaderTenant) -> Response:
    """Return a step with its inputs, output and attempts, and the messages of a model call. Large values are truncated."""
    step = await service.call(lambda: service.pages.step(tenant, run_id, step_id).model_dump_json())
    return Response(step, media_type="application/json")


@router.get("/runs/{run_id}/compare/{other}", tags=["runs"], responses=UNKNOWN, response_model=RunComparison)
async def compare_runs(run_id: PathName, other: PathName, service: ServiceDep, tenant: ReaderTenant) -> Response:
    """Return two runs side by side: their steps by id, and whether the outputs of these are the same."""
    compared = await service.call(lambda: service.pages.compare(tenant, run_id, other).model_dump_json())
    return Response(compared, media_type="application/json")


@router.get("/runs/{run_id}/logs", tags=["runs"], responses=UNKNOWN)
async def show_logs(
    run_id: PathName,
    service: ServiceDep,
    tenant: ReaderTenant,
    after: After = "0-0",
    level: Level = "debug",
    step: str | None = None,
) -> bodies.RunLogLines:
    """Return the log lines of a run from all machines: up to 1,000 lines, after `after`."""
    found = await service.call(service.of(tenant).logs, run_id)
    lines = await service.call(found.read, after=after)
    newest = max((tuple(map(int, line.id.split("-"))) for line in lines), default=None)
    wanted = [line for line in lines if at_least(line, level) and (step is None or of_step(line, step))]
    return bodies.RunLogLines(
        lines=wanted,
        dropped=await service.call(found.dropped),
        next=None if newest is None else f"{newest[0]}-{newest[1]}",
    )


@router.get("/runs/{run_id}/tasks", tags=["runs"], responses=UNKNOWN)
async def list_tasks(run_id: PathName, service: ServiceDep, tenant: ReaderTenant) -> bodies.TaskList:
    """Return the Celery tasks of a run: none here, since only Flower stores them."""
    await service.call(service.of(tenant).find, run_id)
    return bodies.TaskList(tasks=[])


@router.get("/runs/{run_id}/refusals", tags=["runs"], responses=UNKNOWN)
async def show_refusals(
    run_id: PathName, service: ServiceDep, caller: CallerGrant, step: Signalled = None
) -> bodies.Refusals:
    """Return the reasons why this token may not use the buttons of the run pages; empty texts for those that it may."""
    caller.require("read")
    return bodies.Refusals.model_validate(await service.call(service.granted(caller).refusals, run_id, step))


@router.post(
    "/runs/{run_id}/retry", status_code=202, tags=["runs"],
    responses={**UNKNOWN, 422: {"model": ErrorBody, "description": "it is open, or succeeded: there is nothing to retry"}},
)  # fmt: skip
async def retry_run(
    response: Response, run_id: PathName, service: ServiceDep, caller: CallerGrant, key: Key = None
) -> bodies.RunState:
    """Retry the unfinished part of a run that failed, was cancelled or timed out, as a new run; the rest is copied."""
    return await accepted(await service.call(service.granted(caller).rerun, run_id, None, {}, key), response, service)


@router.post(
    "/runs/{run_id}/fork", status_code=202, tags=["runs"], responses=UNKNOWN,
    openapi_extra=document_body(bodies.ForkBody, bodies.FORK),
)  # fmt: skip
async def fork_run(
    request: Request, response: Response, run_id: PathName, service: ServiceDep, caller: CallerGrant, key: Key = None
) -> bodies.RunState:
    """Fork a closed run from a step on, as a new run; the steps upstream are copied."""
    body = await bodies.read_body(request, bodies.ForkBody)
    return await accepted(
        await service.call(service.granted(caller).rerun, run_id, body.from_step, body.changes, key), response, service
    )


# --- the pages themselves ---------------------------------------------------------------------------------------------------


@static.get("/")
async def home(service: ServiceDep) -> Response:
    """Redirect to the run pages."""
    return RedirectResponse(f"{service.prefix}{PAGES}/home")


@static.get(f"{PAGES}/static/{{path:path}}")
async def asset(request: Request, path: str) -> Response:
    """Return a script, style or image of the pages."""
    found = assets.asset(path)
    if found is None:
        raise RequestRejected(404, f"the pages have no file {path!r}")
    return _file(request, found)


@static.get(PAGES)
@static.get(f"{PAGES}/{{path:path}}")
async def page(request: Request, service: ServiceDep, path: str = "") -> Response:
    """Return the document of every page."""
    state = request.app.state
    return _file(
        request,
        assets.index(api=service.prefix, base=service.prefix + PAGES, flower=state.flower, trace=state.trace),
    )


def _file(request: Request, found: assets.Asset) -> Response:
    headers = {**assets.HEADERS, "Cache-Control": assets.CACHE, "ETag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
