"""HTTP routes of schedules. A token with the scope `submit` may change and trigger those whose runs it could start."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from cantata.client.records import ScheduleRecord, Schedules
from cantata.flows.schedules import Schedule, ScheduleView
from cantata.surfaces.gateway.api.bodies import Removed, document_body, read_body
from cantata.surfaces.gateway.api.routes import ERRORS, UNKNOWN, ReaderTenant, ServiceDep, SubmitGrant
from cantata.surfaces.gateway.grants import Grant
from cantata.surfaces.gateway.outer_layer import PathName
from cantata.surfaces.gateway.service import GatewayService
from cantata.values import Instant, Value

SCHEDULE = {
    "cron": "0 7 * * mon-fri",
    "timezone": "Europe/Berlin",
    "turn": {"text": "Report of {date}", "agent": "writer"},
}
BACKFILL = {"start": "2030-05-01", "end": "2030-05-07T23:59"}

Note = Annotated[str, Query(max_length=1000, description="why, for people")]


class ScheduleList(Value):
    """Schedules by name."""

    schedules: list[ScheduleView] = Field(description="sorted by name, each with its last run")


class TriggeredRun(Value):
    """Result of a trigger."""

    outcome: str = Field(
        description="new; or queued or skipped, since a run of the schedule is open or its session is full"
    )
    run_id: str = Field(description="the run; empty if none was started")


class BackfillBody(Value):
    """A range of past times of a schedule; without a time zone in that of the schedule."""

    start: Instant = Field(description="the first time")
    end: Instant = Field(description="the last time")


class Backfilled(Value):
    """Result of a backfill."""

    times: int = Field(description="number of times that will run")


REQUEST_BODIES = (Schedule, BackfillBody)

router = APIRouter(tags=["schedules"], responses=ERRORS)


@router.get("/schedules")
async def list_schedules(service: ServiceDep, tenant: ReaderTenant) -> ScheduleList:
    """Return all schedules, each with its last run."""
    schedules = service.of(tenant).schedules
    found = await service.call(schedules.list_all if tenant is None else schedules.list)
    return ScheduleList(schedules=[*found])


@router.get("/schedules/{name}", responses=UNKNOWN)
async def show_schedule(name: PathName, service: ServiceDep, tenant: ReaderTenant) -> ScheduleView:
    """Return a schedule with its next times and its last runs."""
    return await service.call(service.of(tenant).schedules.get, name)


@router.put("/schedules/{name}", openapi_extra=document_body(Schedule, SCHEDULE))
async def put_schedule(request: Request, name: PathName, service: ServiceDep, caller: SubmitGrant) -> ScheduleView:
    """Create or replace a schedule. Its runs have the gateway's configuration as it is now."""
    spec = await read_body(request, Schedule)
    return await service.call(_put, service, caller, name, spec)


@router.delete("/schedules/{name}", responses=UNKNOWN)
async def delete_schedule(name: PathName, service: ServiceDep, caller: SubmitGrant) -> Removed:
    """Delete a schedule; its open runs go on."""
    await service.call(lambda: _own(service, caller, name).delete(name))
    return Removed(removed=1)


@router.post("/schedules/{name}/pause", responses=UNKNOWN)
async def pause_schedule(name: PathName, service: ServiceDep, caller: SubmitGrant, note: Note = "") -> ScheduleView:
    """Pause a schedule: its times pass without a run."""
    return await service.call(lambda: _own(service, caller, name).pause(name, note))


@router.post("/schedules/{name}/resume", responses=UNKNOWN)
async def resume_schedule(name: PathName, service: ServiceDep, caller: SubmitGrant) -> ScheduleView:
    """Have a paused schedule go on with its next time."""
    return await service.call(lambda: _own(service, caller, name).resume(name))


@router.post("/schedules/{name}/trigger", responses=UNKNOWN)
async def trigger_schedule(name: PathName, service: ServiceDep, caller: SubmitGrant) -> TriggeredRun:
    """Start a run of a schedule now, as its overlap allows."""
    outcome, run_id = await service.call(lambda: _own(service, caller, name).trigger(name, labels=caller.labels()))
    return TriggeredRun(outcome=outcome, run_id=run_id)


@router.post("/schedules/{name}/backfill", responses=UNKNOWN, openapi_extra=document_body(BackfillBody, BACKFILL))
async def backfill_schedule(request: Request, name: PathName, service: ServiceDep, caller: SubmitGrant) -> Backfilled:
    """Run the past times of a schedule from one moment to another, one after the other."""
    body = await read_body(request, BackfillBody)
    count = await service.call(
        lambda: _own(service, caller, name).backfill(name, body.start, body.end, labels=caller.labels())
    )
    return Backfilled(times=count)


def _own(service: GatewayService, caller: Grant, name: str) -> Schedules:
    """Return the schedules of a token's tenant, if it may change the one with this name. Raises ConfigError, RequestRejected."""
    found = service.of(caller.tenant).schedules
    caller.check_schedule(found.get(name).schedule, service.client.definitions)
    return found


def _put(service: GatewayService, caller: Grant, name: str, spec: Schedule) -> ScheduleRecord:
    caller.check_schedule(spec, service.client.definitions)
    found = service.of(caller.tenant).schedules
    if known := found.find(name):
        caller.check_schedule(known.schedule, service.client.definitions)
    return found.create(name, spec, replace=True, labels=caller.labels())
