"""HTTP route of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from cantata.bounds import FIRST_INSTANT_S, LAST_INSTANT_S
from cantata.client.auditing import MAX_PAGE, AuditPage
from cantata.surfaces.gateway.api.routes import ERRORS, CallerGrant, ServiceDep

Text = Annotated[str, Query(max_length=300)]
Before = Annotated[str | None, Query(max_length=30, description="`next` of the previous page")]
Since = Annotated[
    float | None,
    Query(ge=FIRST_INSTANT_S, le=LAST_INSTANT_S, description="only entries since then, seconds since 1970"),
]

router = APIRouter(responses=ERRORS, tags=["audit"])


@router.get("/audit")
async def list_audit(
    service: ServiceDep,
    caller: CallerGrant,
    since: Since = None,
    by: Text = "",
    action: Text = "",
    run: Text = "",
    before: Before = None,
    most: Annotated[int, Query(ge=1, le=MAX_PAGE, description="maximum number")] = 50,
) -> AuditPage:
    """Return the audit log, newest first: of the token's tenant, or for an operator of all. A page may be short although `next` is set.

    `action` is one, such as `run.cancel`, or the beginning of several, such as `run`.
    """
    if not caller.is_operator:
        caller.require("admin")
    log = service.of(caller.reads)
    return await service.call(log.audit, since=since, by=by, action=action, run_id=run, before=before, limit=most)
