"""Routes of bulk actions: cancel, retry or signal all runs that match a filter, after a preview of their number."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from cantata.client import bulk
from cantata.client.bulk import BulkAction, BulkFilter, BulkPart, BulkPreview
from cantata.client.records import RunSummary
from cantata.surfaces.gateway.api.bodies import document_body, read_body
from cantata.surfaces.gateway.api.inbox import ReaderGrant
from cantata.surfaces.gateway.api.pages import Kind, SearchText, Since, Statuses, Until
from cantata.surfaces.gateway.api.routes import ERRORS, ServiceDep
from cantata.surfaces.gateway.audited_routes import is_refusal
from cantata.surfaces.gateway.granted_client import GrantedClient
from cantata.surfaces.http.rejections import RequestRejected, check_signal
from cantata.values import JsonValue

Action = Annotated[BulkAction, Query(description="cancel, retry or signal")]
Step = Annotated[str, Query(max_length=2000, description="the waiting step of a signal, by its id or name")]

CANCELLED = ("cancelling", "cancelled")


class BulkBody(BulkFilter):
    """A part of a bulk action: the filter of its preview, with the `until` that this returned."""

    value: JsonValue = Field(default=None, description="the value of a signal")
    before: str | None = Field(
        default=None, max_length=220, description="`next` of the previous part; null for the first"
    )


BULK = {"action": "cancel", "q": "nightly", "until": 1893456000.0}
REQUEST_BODIES = (BulkBody,)

router = APIRouter(tags=["runs"], responses=ERRORS)


@router.get("/runs/bulk/preview")
async def preview_bulk(
    service: ServiceDep,
    caller: ReaderGrant,
    action: Action,
    status: Statuses = None,
    kind: Kind = None,
    q: SearchText = "",
    since: Since = None,
    until: Until = None,
    step: Step = "",
) -> BulkPreview:
    """Return how many runs a bulk action would change, the newest and the oldest of them, and the `until` for the action."""
    wanted = BulkFilter(
        action=action, statuses=tuple(status or ()), kind=kind, q=q, since=since, until=until, step=step
    )
    return await service.call(bulk.preview, service.of(caller.reads), wanted)


@router.post("/runs/bulk", openapi_extra=document_body(BulkBody, BULK))
async def act_in_bulk(request: Request, service: ServiceDep, caller: ReaderGrant) -> BulkPart:
    """Act on the next runs of a filter, at most 50, each under the rights of the token; repeat it with `before: next` until `next` is null.

    A run that the token may not change is in `refused`, and keeps no other from being changed. A part may be repeated.
    """
    body = await read_body(request, BulkBody)
    granted, runs = service.granted(caller), service.of(caller.reads)

    def act(run: RunSummary) -> str:
        try:
            return _act(granted, body, run)
        except RequestRejected as rejected:
            if is_refusal(rejected):
                step = body.step if body.action == "signal" else ""
                runs.record_refusal(f"run.{body.action}", str(rejected), run_id=run.run_id, target=step)
            raise

    return await service.call(lambda: bulk.act(runs, body, act, before=body.before))


def _act(granted: GrantedClient, body: BulkBody, run: RunSummary) -> str:
    """Act on one run; return why it stays as it is, or "". Raises RequestRejected, ConfigError, UnknownRunError."""
    match body.action:
        case "cancel":
            status = granted.cancel(run.run_id)
            return "" if status in CANCELLED else f"it was over already: {status}"
        case "retry":
            granted.rerun(run.run_id, None, {}, bulk.retry_key(run.run_id))
        case "signal":
            check_signal(granted.signal(run.run_id, body.step, body.value))
    return ""
