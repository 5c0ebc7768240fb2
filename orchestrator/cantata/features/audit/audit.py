"""Recording of actions in the audit log: no action without its entry.

The entry is written before the action, with the outcome `begun`, and replaced after it. So an action whose entry cannot be written is not
done, and a crash between the two leaves an entry that says so. An action that turns out to change nothing leaves no entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from cantata.errors import CantataError, StoredDataError, UnavailableError, UnknownRunError
from cantata.features.audit.actors import Actor, current_actor
from cantata.features.audit.audit_store import AuditStore
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import RedisFailure

log = structlog.get_logger(__name__)


class RecordedAction:
    """An action under way."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.detail = ""
        """The result of the action, for its entry."""
        self.was_done = True
        """False if the action turned out to change nothing: then it has no entry."""
        self.refusal = ""
        """The reason why the actor may not do it: its entry then says so."""


@contextmanager
def recorded(
    ledger: Ledger, action: str, *, tenant: str = "", run_id: str = "", target: str = "", by: str = ""
) -> Iterator[RecordedAction]:
    """Record the action of the block, by whoever acts here: `with recorded(ledger, "worker.drain", target=name): ...`.

    The block may set `detail`, `was_done` and `refusal` of what it gets. If it raises a CantataError, there is no entry. If Redis failed,
    or another error was raised, the entry says `begun`: it is not known whether the action was done.

    Args:
        ledger: The ledger.
        action: The action, such as `run.cancel`: what is acted on, a dot, and a verb.
        tenant: The owner of what is acted on; "" for what belongs to none, such as workers and queues.
        run_id: The run, if the action is about one.
        target: The step, schedule, batch, worker, queue or the like.
        by: The name of the author, if the caller gives another than that of the actor; it is a claim then.

    Raises:
        UnavailableError: The entry cannot be written. The block was not executed.
    """
    store, found = AuditStore(ledger), RecordedAction(current_actor().named(by))
    of = {"tenant": tenant, "run_id": run_id, "target": target}
    begun = store.append(action, "begun", found.actor, **of)
    try:
        yield found
    except (UnavailableError, RedisFailure):
        raise
    except CantataError:
        with suppress(UnavailableError, RedisFailure):  # the entry then says `begun`
            store.remove(tenant, begun)
        raise
    try:
        if found.refusal:
            store.append(action, "refused", found.actor, **of, detail=found.refusal)
        if found.refusal or not found.was_done:
            store.remove(tenant, begun)
        else:
            store.append(action, "done", found.actor, **of, detail=found.detail, replaced=begun)
    except (
        UnavailableError,
        RedisFailure,
    ) as error:  # the action was done: its caller must not be told that it was not
        log.warning("audit_not_completed", action=action, entry=begun, by=found.actor.name, error=str(error), **of)


def owner_of(ledger: Ledger, run_id: str) -> str:
    """Return the tenant of a run; "" of one without, and of one that is unknown or cannot be read."""
    try:
        return ledger.runs.kind_and_tenant(run_id)[1]
    except (UnknownRunError, StoredDataError):
        return ""


def record_refusal(
    ledger: Ledger, action: str, reason: str, *, tenant: str = "", run_id: str = "", target: str = ""
) -> None:
    """Record that an action was refused, since whoever asked for it lacks the right. An error of Redis is logged: nothing was done."""
    try:
        AuditStore(ledger).append(
            action, "refused", current_actor(), tenant=tenant, run_id=run_id, target=target, detail=reason
        )
    except (UnavailableError, RedisFailure) as error:
        log.warning("audit_not_completed", action=action, refused=reason, error=str(error))
