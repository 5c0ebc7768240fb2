"""TenantClient: all that belongs to a tenant, for the surfaces: `client.of(tenant)`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

from cantata.client.runs import MAX_COMPARED, ChainRun, ProviderBatchRun, Run, SignalAction, TurnRun, WebhookRun
from cantata.engine.engine import Engine
from cantata.engine.limits import daily_costs
from cantata.engine.limits.daily_costs import DayCost
from cantata.errors import ConfigError, StoredDataError, UnknownRunError
from cantata.features.audit.audit import RecordedAction, record_refusal, recorded
from cantata.features.audit.audit_store import AuditFilter, AuditPage, AuditStore
from cantata.features.batches.batches import Batches
from cantata.features.forks import forking
from cantata.features.forks.forking import fork
from cantata.features.inbox import inbox
from cantata.features.inbox.answers import SignalAnswer, split_id
from cantata.features.inbox.inbox import InboxFilter
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.schedules.schedules import Schedules
from cantata.features.sessions.sessions import Sessions
from cantata.flows.forks import ForkSpec
from cantata.flows.turns.turn_plan import target_of
from cantata.flows.waits import Inbox, InboxItem
from cantata.flows.wire import (
    RUN_OVER,
    ChainRequest,
    ChainResponse,
    ProviderBatchRequest,
    RunResult,
    RunStatus,
    TurnRequest,
)
from cantata.ledger.redis.records import remedy_for
from cantata.ledger.runs import event_log, listing
from cantata.ledger.runs.listing import RunCounts, RunFilter, RunList
from cantata.ledger.runs.log_store import Logs
from cantata.ledger.runs.summaries import RunSummary
from cantata.text.suggestions import hint
from cantata.values import JsonValue, stored

SIGNAL_MESSAGES: Mapping[str, str] = {
    "taken": "step {step!r} took the value and goes on",
    "kept": "kept for step {step!r}, which does not wait yet{nearest}",
    "over": "step {step!r} has its value already",
    "closed": "run {run_id!r} is over",
    "unclear": "{step!r} matches several steps of run {run_id!r}; use a full id{nearest}",
    "full": "run {run_id!r} keeps no more early signals; send this one when {step!r} waits",
    "not_allowed": "step {step!r} is for others to answer{nearest}",
}
"""Outcome of a signal → its message."""

TurnOrChain = TypeVar("TurnOrChain", TurnRequest, ChainRequest, ProviderBatchRequest)


class TenantClient:
    """Operations on the runs, sessions and memory of a tenant ("" for those without one), or on the runs of all tenants (None).

    Every method blocks for some milliseconds. Each raises UnknownRunError for a run that does not exist or is another tenant's, ConfigError
    for an invalid request, and UnavailableError if Redis cannot be reached.
    """

    def __init__(self, engine: Engine, tenant: str | None = None) -> None:
        self.engine = engine
        self.tenant = tenant

    def list(
        self,
        *,
        statuses: Sequence[str] = (),
        kind: str | None = None,
        text: str = "",
        since: float | None = None,
        until: float | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> RunList:
        """Return a page of runs, newest first; `before` is the `next` of the previous page."""
        wanted = RunFilter(self.tenant, tuple(statuses), kind, text, since, until)
        found = listing.find_page(self.engine.ledger, wanted, before=before, most=limit)
        try:
            _, default = target_of(TurnRequest(text=""), self.engine.definitions) or ("", "")
        except ConfigError:  # a list can be read whatever the configuration is like now
            default = ""
        runs = [
            run.model_copy(update={"target": default}) if run.kind == "turn" and not run.target else run
            for run in found.runs
        ]
        return found.model_copy(update={"runs": runs})

    def counts(self, **filters: Any) -> RunCounts:
        """Return the number of runs by status; `filters` as in RunFilter. Of very many, only the newest are counted."""
        return listing.count(self.engine.ledger, RunFilter(self.tenant, **filters))

    def costs(self, days: int) -> Sequence[DayCost]:
        """Return the cost of model calls on the last days, the newest first."""
        return daily_costs.read(self.engine.ledger, self.tenant, days)

    def newest(self, limit: int | None, *, behind: str | None = None, **filters: Any) -> Sequence[RunSummary]:
        """Return up to `limit` runs, newest first, that were submitted before the run `behind`; `filters` as in RunFilter."""
        wanted = RunFilter(self.tenant, **filters)
        return [*islice(listing.iterate(self.engine.ledger, wanted, behind=behind), limit)]

    def find(self, run_id: str, *, may_be_unreadable: bool = False) -> TurnRun | ChainRun:
        """Return a run by its id.

        Raises UnknownRunError, also for that of another tenant, and StoredDataError if its record cannot be read, unless that may be so.
        """
        try:
            kind, tenant = self.engine.ledger.runs.kind_and_tenant(run_id)
        except StoredDataError as error:
            if self.tenant is not None:  # whose it is cannot be known
                raise UnknownRunError.of(run_id) from error
            if may_be_unreadable:
                return TurnRun(self.engine, run_id)
            raise StoredDataError(f"run {run_id!r} cannot be read ({error}); {remedy_for(run_id)}") from error
        if self.tenant not in (None, tenant):
            raise UnknownRunError.of(run_id)
        kinds: Mapping[str, type[TurnRun | ChainRun]] = {
            "chain": ChainRun,
            "webhook": WebhookRun,
            "batch": ProviderBatchRun,
        }
        return kinds.get(kind, TurnRun)(self.engine, run_id)

    def request(self, run_id: str, kind: type[TurnOrChain]) -> TurnOrChain:
        """Return the request of a run, which is of this kind."""
        return stored(kind, self._request_of(run_id)[0])

    def labels(self, run_id: str) -> Mapping[str, str]:
        """Return the labels of a run."""
        return self._request_of(run_id)[1]

    def _request_of(self, run_id: str) -> tuple[str, Mapping[str, str]]:
        """Return the request of a run as text, and its labels."""
        _, text, _, labels = self.engine.ledger.runs.request_of(run_id)
        if self.tenant not in (None, labels.get("tenant", "")):
            raise UnknownRunError.of(run_id)
        return text, labels

    def has_events(self, run_id: str, after: int) -> bool:
        """Return whether a run has events after an offset, or may have some later."""
        is_over = self.find(run_id).status() in RUN_OVER
        ledger = self.engine.ledger
        return not (after and is_over) or bool(
            ledger.with_retries(lambda: event_log.read(ledger.redis, run_id, after=after, most=1))
        )

    def logs(self, run_id: str) -> Logs:
        """Return the log lines of a run."""
        self.find(run_id)
        return Logs(self.engine.ledger.redis, run_id)

    def cancel(self, run_id: str) -> RunStatus:
        """Cancel a run; return its status then."""
        return self.find(run_id, may_be_unreadable=True).cancel()

    def rerun(
        self,
        run_id: str,
        from_step: str | None = None,
        *,
        changes: Mapping[str, JsonValue] | None = None,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> TurnRun | ChainRun:
        """Fork a run from a step on, or without a step retry its unfinished part. The same key gives the same run."""
        self.find(run_id)
        return self.find(
            fork(self.engine, run_id, from_step, (changes or {}) if from_step is not None else {}, key, labels)
        )

    def was_forked_from(
        self, created: Run, source: str, from_step: str | None, changes: Mapping[str, JsonValue]
    ) -> bool:
        """Return whether a run was created from its source with this step and these changes, and not by another request of the same key."""
        self.find(source)
        return forking.was_forked_from(self.engine.ledger, created.run_id, source, from_step, changes)

    def kept_waits(self, run_id: str, from_step: str) -> Sequence[tuple[str, ForkSpec]]:
        """Return the waits of a run that were answered, and whose answers a fork from this step would keep."""
        self.find(run_id)
        return forking.kept_waits(self.engine.ledger, run_id, from_step)

    def inbox(
        self, *, labels: Mapping[str, str] | None = None, who: str = "", after: str | None = None, limit: int = 50
    ) -> Inbox:
        """Return a page of the steps that wait for a person, the longest first; `after` is the `next` of the previous page."""
        return inbox.find_page(self.engine.ledger, InboxFilter(self.tenant, labels or {}, who), after=after, most=limit)

    def inbox_item(self, item_id: str) -> InboxItem:
        """Return a step that waits for a person. Raises UnknownRunError if it does not wait now."""
        run_id, step = split_id(item_id)
        item = self.waiting_step(run_id, step)
        if item is None:
            raise UnknownRunError(
                f"step {step!r} of run {run_id!r} does not wait for a person now; `submit inbox list` lists those that do"
            )
        return item

    def waiting_step(self, run_id: str, step: str) -> InboxItem | None:
        """Return a step of a run; None if it does not wait for a person now."""
        self.find(run_id)
        return inbox.find(self.engine.ledger, run_id, step)

    def signal(
        self,
        run_id: str,
        step: str,
        value: JsonValue,
        *,
        by: str = "",
        groups: Collection[str] | None = None,
        action: SignalAction = "run.signal",
    ) -> SignalAnswer:
        """Signal a waiting step; the signal of a step that does not wait yet is kept. Arguments and errors as in `Run.signal`."""
        run = self.find(run_id)
        outcome = run.signal(step, value, by=by, groups=groups, action=action)
        near = ""
        if (
            outcome == "kept"
            and (like := run.nearest_step(step)) != step
            and not run.steps(self.engine.ledger.reader.answering(run_id, [step]))
        ):
            near = f"; so far the run has no such step{hint(like)}"
        elif outcome == "unclear":
            matching = (
                each for each in self.engine.ledger.reader.step_ids(run_id, MAX_COMPARED) if each.endswith(f"/{step}")
            )
            near = f": {', '.join(map(repr, matching))}"
        return SignalAnswer(outcome, SIGNAL_MESSAGES[outcome].format(step=step, run_id=run_id, nearest=near))

    def audit(
        self,
        *,
        since: float | None = None,
        by: str = "",
        action: str = "",
        run_id: str = "",
        before: str | None = None,
        limit: int = 50,
    ) -> AuditPage:
        """Return a page of the audit log, newest first; `before` is the `next` of the previous page. Arguments as in `Client.audit`."""
        wanted = AuditFilter(self.tenant, since, by, action, run_id)
        return AuditStore(self.engine.ledger).find_page(wanted, before=before, most=limit)

    def record(self, action: str, target: str) -> AbstractContextManager[RecordedAction]:
        """Record an action of the block on something of the tenant, such as a session, in the audit log."""
        return recorded(self.engine.ledger, action, tenant=self.tenant or "", target=target)

    def record_refusal(self, action: str, reason: str, *, run_id: str = "", target: str = "") -> None:
        """Record in the audit log that an action was refused, since whoever asked for it lacks the right."""
        owner = self.tenant if self.tenant is not None or not run_id else self.engine.ledger.quotas.tenant_of(run_id)
        record_refusal(self.engine.ledger, action, reason, tenant=owner or "", run_id=run_id, target=target)

    @property
    def sessions(self) -> Sessions:
        """The sessions of the tenant; those without a tenant, if it is None."""
        return Sessions(self.engine.ledger, self.tenant or "")

    @property
    def memory(self) -> MemoryStore:
        """The memory of the tenant; that without a tenant, if it is None."""
        return MemoryStore(self.engine.ledger, tenant=self.tenant or "", limits=self.engine.limits)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the tenant; those without a tenant, if it is None."""
        return Schedules(self.engine, self.tenant or "")

    @property
    def batches(self) -> Batches:
        """The batches of the tenant; those without a tenant, if it is None."""
        return Batches(self.engine, self.tenant or "")

    def unknown_step(self, run_id: str, step: str) -> UnknownRunError:
        """Return the error for a step that a run does not have."""
        near = self.find(run_id).nearest_step(step)
        return UnknownRunError(f"run {run_id!r} has no step {step!r}{hint(near if near != step else None)}")


def result_of(run: TurnRun | ChainRun) -> RunResult | ChainResponse:
    """Return the result of a run, or its result so far."""
    return run.result(1.0) if isinstance(run, TurnRun) and run.status() in RUN_OVER else run.so_far()
