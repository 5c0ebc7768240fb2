"""HTTP route of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from cantata.bounds import FIRST_INSTANT_S, LAST_INSTANT_S
from cantata.client.auditing import MAX_PAGE, AuditPage
from cantata.surfaces.gateway.api.routes import ERRORS, ServiceDep, grant_with
from cantata.surfaces.gateway.grants import Grant
from cantata.surfaces.http.rejections import RequestRejected

AdminGrant = Annotated[Grant, Depends(grant_with("admin"))]
Text = Annotated[str, Query(max_length=300)]
Before = Annotated[str | None, Query(max_length=30, description="`next` of the previous page")]
Since = Annotated[
    float | None,
    Query(ge=FIRST_INSTANT_S, le=LAST_INSTANT_S, description="only entries since then, seconds since 1970"),
]
Tenant = Annotated[
    str | None,
    Query(max_length=200, description="only entries about this tenant; a token of a tenant sees no others anyway"),
]

router = APIRouter(responses=ERRORS, tags=["audit"])


@router.get("/audit")
async def list_audit(
    service: ServiceDep,
    caller: AdminGrant,
    tenant: Tenant = None,
    since: Since = None,
    by: Text = "",
    action: Text = "",
    run: Text = "",
    before: Before = None,
    most: Annotated[int, Query(ge=1, le=MAX_PAGE, description="maximum number")] = 50,
) -> AuditPage:
    """Return the audit log, newest first: of the token's tenant, or of all for the tenant \"\". A page may be short although `next` is set.

    `action` is one, such as `run.cancel`, or the beginning of several, such as `run`.
    """
    if caller.tenant and tenant not in (None, caller.tenant):
        message = f"token {caller.name!r} is of tenant {caller.tenant!r}, and sees no entries about others"
        raise RequestRejected(403, message, code="missing_scope")
    log = service.client.of(caller.tenant or tenant)
    return await service.call(log.audit, since=since, by=by, action=action, run_id=run, before=before, limit=most)
