"""Routes of the inbox: steps that wait for a person, and their answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from cantata.client.records import labels_of
from cantata.flows.waits import Inbox, InboxItem
from cantata.surfaces.gateway.api import bodies
from cantata.surfaces.gateway.api.bodies import document_body
from cantata.surfaces.gateway.api.routes import ERRORS, UNKNOWN, Limit, ServiceDep, SignalGrant, grant_with
from cantata.surfaces.gateway.grants import Grant
from cantata.surfaces.gateway.outer_layer import PathName

ReaderGrant = Annotated[Grant, Depends(grant_with("read"))]
Labels = Annotated[
    list[str],
    Query(alias="label", max_length=20, description="only runs with this label, `name=value`; may be repeated"),
]
Who = Annotated[str, Query(max_length=200, description="only those that this name, group or scope may answer")]
After = Annotated[str | None, Query(max_length=2100, description="`next` of the previous page")]

router = APIRouter(responses=ERRORS, tags=["inbox"])


@router.get("/inbox")
async def list_inbox(
    service: ServiceDep,
    caller: ReaderGrant,
    label: Labels = [],  # noqa: B006  # FastAPI copies it
    who: Who = "",
    after: After = None,
    most: Limit = 50,
) -> Inbox:
    """Return the steps that wait for a person, the longest waiting first; `refused` says why this token may not answer one."""
    return await service.call(service.granted(caller).inbox, labels=labels_of(label), who=who, after=after, limit=most)


@router.get("/inbox/{run_id}/{step:path}", responses=UNKNOWN)
async def show_item(run_id: PathName, step: PathName, service: ServiceDep, caller: ReaderGrant) -> InboxItem:
    """Return one step that waits for a person."""
    return await service.call(service.granted(caller).inbox_item, f"{run_id}/{step}")


@router.post("/inbox/answers", openapi_extra=document_body(bodies.AnswersBody, bodies.ANSWERS))
async def answer_items(request: Request, service: ServiceDep, caller: SignalGrant) -> bodies.AnswersResult:
    """Answer steps that wait for a person. Each answer has its own outcome: one that is refused stops no other."""
    body = await bodies.read_body(request, bodies.AnswersBody)
    return bodies.AnswersResult(answers=await service.call(service.granted(caller).answer, body.answers))
