"""Routes of operators: the health of the fleet, drains of workers, and pauses of queues."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field

from cantata.client.fleet import pause_warning
from cantata.client.records import PausedQueue, QueueLoad, Worker
from cantata.operation.health import HealthReport
from cantata.surfaces.gateway.api.bodies import document_body, read_body
from cantata.surfaces.gateway.api.routes import ERRORS, CallerGrant, ServiceDep
from cantata.surfaces.gateway.fleet_health import FleetHealth
from cantata.surfaces.gateway.outer_layer import PathName
from cantata.values import Value


class DrainBody(Value):
    """A drain of a worker."""

    exits: bool = Field(default=False, description="whether its process ends when it is drained")


class QueueList(Value):
    """The load of each queue."""

    queues: dict[str, QueueLoad] = Field(description="queue → what waits, who serves it, and whether it is paused")


class QueuePaused(Value):
    """A paused queue."""

    pause: PausedQueue = Field(description="since when and by whom; an earlier pause stays as it is")
    warning: str = Field(default="", description="what the pause stops besides the queue's own steps; empty if nothing")


class QueueResumed(Value):
    """A queue that is served again."""

    queue: str


DRAIN = {"exits": False}
REQUEST_BODIES = (DrainBody,)

router = APIRouter(tags=["health"], responses=ERRORS)


@router.get("/status")
async def show_status(request: Request, service: ServiceDep, caller: CallerGrant) -> HealthReport:
    """Return the checks of `submit status`: of Redis, the workers, the queues and the runs, each with what to do."""
    caller.require_fleet()
    health: FleetHealth = request.app.state.fleet_health
    return await service.call(health.report)


@router.post("/workers/{name}/drain", openapi_extra=document_body(DrainBody, DRAIN))
async def drain_worker(request: Request, name: PathName, service: ServiceDep, caller: CallerGrant) -> Worker:
    """Let a worker take no more work, and finish or release its steps; return it as it was. `GET /workers` shows when it is drained."""
    caller.require_fleet()
    body = await read_body(request, DrainBody)
    return await service.call(lambda: service.client.fleet.drain(name, by=caller.name, exits=body.exits))


@router.post("/workers/{name}/undrain")
async def undrain_worker(name: PathName, service: ServiceDep, caller: CallerGrant) -> Worker:
    """Let a drained worker take work again; return it as it was."""
    caller.require_fleet()
    return await service.call(lambda: service.client.fleet.undrain(name, by=caller.name))


@router.get("/queues")
async def list_queues(service: ServiceDep, caller: CallerGrant) -> QueueList:
    """Return all queues with their load, and which are paused."""
    caller.require_fleet()
    return QueueList(queues=await service.call(service.client.fleet.queues))


@router.post("/queues/{name}/pause")
async def pause_queue(name: PathName, service: ServiceDep, caller: CallerGrant) -> QueuePaused:
    """Let no worker take work from a queue until it is resumed. What runs ends as usual; deadlines keep running."""
    caller.require_fleet()
    pause = await service.call(lambda: service.client.fleet.pause_queue(name, by=caller.name))
    return QueuePaused(pause=pause, warning=pause_warning(name))


@router.post("/queues/{name}/resume")
async def resume_queue(name: PathName, service: ServiceDep, caller: CallerGrant) -> QueueResumed:
    """Let workers take work from a paused queue again."""
    caller.require_fleet()
    await service.call(lambda: service.client.fleet.resume_queue(name, by=caller.name))
    return QueueResumed(queue=name)
