"""Audited routes of the gateway: refusals of their requests are entries of the audit log. What they do is recorded where it is done."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from fastapi import Request

from cantata.surfaces.gateway.grants import Grant
from cantata.surfaces.gateway.service import GatewayService
from cantata.surfaces.http.rejections import RequestRejected

ACTIONS: Mapping[str, str] = {
    "cancel_run": "run.cancel",
    "retry_run": "run.retry",
    "fork_run": "run.fork",
    "signal_run": "run.signal",
    "answer_items": "inbox.answer",
    "pause_batch": "batch.pause",
    "resume_batch": "batch.resume",
    "cancel_batch": "batch.cancel",
    "retry_batch": "batch.retry",
    "put_schedule": "schedule.change",
    "delete_schedule": "schedule.delete",
    "pause_schedule": "schedule.pause",
    "resume_schedule": "schedule.resume",
    "trigger_schedule": "schedule.trigger",
    "backfill_schedule": "schedule.backfill",
    "clear_session": "session.clear",
    "keep_memory": "memory.store",
    "forget_memory": "memory.delete",
    "drain_worker": "worker.drain",
    "undrain_worker": "worker.undrain",
    "pause_queue": "queue.pause",
    "resume_queue": "queue.resume",
    "act_in_bulk": "run.bulk",
}
"""Name of a route's function → its action."""

NOT_AUDITED = frozenset(
    {
        "submit_turn",
        "submit_chain",
        "start_chain",
        "start_workflow",
        "begin_batch",
        "submit_rows",
        "acknowledge_results",
    }
)
"""Routes that change something and are not audited: the label `requested_by` of the runs says whose they are."""

RECORDED_ELSEWHERE = frozenset({"not_allowed"})
"""Codes of refusals that the client records."""


def is_refusal(rejected: RequestRejected) -> bool:
    """Return whether a rejection is a refusal for lack of rights that the client has not recorded."""
    return rejected.status == 403 and rejected.code not in RECORDED_ELSEWHERE


async def record_rejection(request: Request, rejected: RequestRejected) -> None:
    """Record a rejection in the audit log, if it is a refusal for lack of rights, of a route that is audited."""
    action = ACTIONS.get(getattr(request.scope.get("endpoint"), "__name__", ""))
    grant: Grant | None = getattr(request.state, "grant", None)
    if action is None or grant is None or not is_refusal(rejected):
        return
    names = {name: unquote(str(value)) for name, value in request.path_params.items()}
    run_id = names.pop("run_id", "")
    service: GatewayService = request.app.state.service
    owner = service.of(grant.reads)
    await service.call(owner.record_refusal, action, str(rejected), run_id=run_id, target="/".join(names.values()))
