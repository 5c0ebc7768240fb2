"""Log lines of a run over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from cantata.gateway.api.routes import ERRORS, UNKNOWN, ReaderTenant, ServiceDep
from cantata.gateway.outer_layer import PathName
from cantata.models.values import Value
from cantata.observability.logs.lines import LogLine
from cantata.state.runs import log_store

router = APIRouter(responses=ERRORS)

After = Annotated[
    str, Query(pattern=r"^[0-9]{1,15}-[0-9]{1,10}$", description="the `id` of the last known line; only later lines are sent")
]
Level = Literal["debug", "info", "warning", "error", "critical"]


class RunLogLines(Value):
    """Log lines of a run."""

    lines: list[LogLine] = Field(description="in the order in which they were logged")
    dropped: int = Field(description="number of older lines that were dropped")
    next: str | None = Field(description="the `after` of the next request; null if there were no lines")


@router.get("/runs/{run_id}/logs", tags=["runs"], responses=UNKNOWN)
async def show_logs(
    run_id: PathName, service: ServiceDep, tenant: ReaderTenant, after: After = "0-0", level: Level = "debug", step: str | None = None
) -> RunLogLines:
    """Return the log lines of a run from all machines: up to 1,000 lines, after `after`."""
    found = await service.call(service.runs(tenant).logs, run_id)
    lines = await service.call(found.read, after=after)
    newest = max((tuple(map(int, line.id.split("-"))) for line in lines), default=None)
    wanted = [line for line in lines if log_store.at_least(line, level) and (step is None or log_store.of_step(line, step))]
    return RunLogLines(lines=wanted, dropped=await service.call(found.dropped), next=None if newest is None else f"{newest[0]}-{newest[1]}")
