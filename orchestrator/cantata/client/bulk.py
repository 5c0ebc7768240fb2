"""Bulk actions: cancel, retry or signal all runs that match a filter, in bounded parts, after a preview of their number.

A preview freezes the filter: it names a moment, and only runs that were accepted before it are acted on. Each part looks at the runs behind
a position in the list, so a part that is repeated finds what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import Field

from cantata.bounds import FIRST_INSTANT_S, LAST_INSTANT_S
from cantata.client.tenant_client import TenantClient
from cantata.errors import CantataError, ConfigError, UnavailableError
from cantata.features.inbox import inbox
from cantata.features.inbox.inbox import InboxFilter
from cantata.flows.graph import is_named
from cantata.flows.wire import RUN_OVER, RunStatus
from cantata.ledger.redis import clock
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import MAX_SEARCH_CHARS, RunFilter
from cantata.ledger.runs.summaries import RunSummary
from cantata.values import Value

MAX_COUNTED = 10_000  # runs that a preview counts: it reads each, a thousand in about 20 ms
PART = 50  # runs that one call acts on: a few milliseconds each
PAGE = 1000

BulkAction = Literal["cancel", "retry", "signal"]

OPEN: tuple[RunStatus, ...] = ("accepted", "running", "waiting")
CAN_RETRY: tuple[RunStatus, ...] = ("failed", "cancelled", "timed_out", "exhausted")


class BulkFilter(Value):
    """The runs of a bulk action, and what is done to them."""

    action: BulkAction = Field(
        description="cancel or signal the open ones, or retry those that failed, were cancelled or timed out"
    )
    statuses: tuple[RunStatus, ...] = Field(
        default=(), description="only runs with one of these; all that the action suits if empty"
    )
    kind: Literal["turn", "chain", "webhook"] | None = Field(
        default=None, description="only runs of this kind; null: turns and chains"
    )
    q: str = Field(
        default="", max_length=MAX_SEARCH_CHARS, description="only runs with this in their id, title, session or labels"
    )
    since: float | None = Field(
        default=None,
        ge=FIRST_INSTANT_S,
        le=LAST_INSTANT_S,
        description="only runs accepted since then, seconds since 1970",
    )
    until: float | None = Field(
        default=None,
        ge=FIRST_INSTANT_S,
        le=LAST_INSTANT_S,
        description="only runs accepted until then, seconds since 1970",
    )
    step: str = Field(default="", max_length=2000, description="the waiting step of a signal, by its id or name")


class BulkPreview(Value):
    """The runs that a bulk action would change."""

    action: BulkAction
    number: int = Field(description="how many runs")
    is_exact: bool = Field(description="whether all were counted; else there are more")
    until: float = Field(description="`until` of the action: runs that are accepted from now on are not touched")
    newest: RunSummary | None = Field(default=None, description="the newest of them")
    oldest: RunSummary | None = Field(default=None, description="the oldest of those that were counted")


class RefusedRun(Value):
    """A run that a bulk action left as it was."""

    run_id: str
    title: str
    reason: str


class BulkPart(Value):
    """Result of a part of a bulk action."""

    done: int = Field(description="runs that it changed")
    refused: list[RefusedRun] = Field(description="runs that it left as they are, and why")
    next: str | None = Field(default=None, description="`before` of the next part; null if this was the last")


def preview(runs: TenantClient, wanted: BulkFilter) -> BulkPreview:
    """Return how many runs an action would change now, exactly up to MAX_COUNTED. Raises ConfigError for a filter that suits no action."""
    _check(wanted)
    frozen = clock.synchronize(runs.engine.ledger.redis) - 0.001  # a run of this very millisecond may come after
    until = frozen if wanted.until is None else min(wanted.until, frozen)
    waiting = _waiting(runs, wanted.step) if wanted.action == "signal" else None
    number, newest, oldest = 0, None, None
    for run in _matching(runs, wanted, until):
        if waiting is not None and run.run_id not in waiting:
            continue
        if number == MAX_COUNTED:
            return BulkPreview(
                action=wanted.action, number=number, is_exact=False, until=until, newest=newest, oldest=oldest
            )
        number, newest, oldest = number + 1, newest or run, run
    return BulkPreview(action=wanted.action, number=number, is_exact=True, until=until, newest=newest, oldest=oldest)


def act(runs: TenantClient, wanted: BulkFilter, do: Callable[[RunSummary], str], *, before: str | None) -> BulkPart:
    """Act on the next runs of a filter, at most PART; `do` returns why it left one as it is, or "". Raises ConfigError, UnavailableError.

    A repeated part acts on each run once: those that were cancelled or retried no longer match.
    """
    _check(wanted)
    if wanted.until is None:
        raise ConfigError("name 'until', as the preview returned it", source="bulk")
    statuses = _statuses(wanted)
    if not statuses:
        return BulkPart(done=0, refused=[])
    found = runs.list(
        statuses=statuses, kind=wanted.kind, text=wanted.q, since=wanted.since, until=wanted.until,
        before=before, limit=PART,
    )  # fmt: skip
    done, refused = 0, list[RefusedRun]()
    for run in found.runs:
        if not _suits(run, wanted):
            continue
        if wanted.action == "signal" and not _waits(runs, run, wanted.step):
            continue
        try:
            reason = do(run)
        except UnavailableError:  # the others would wait for it too: the part is to be repeated
            raise
        except CantataError as error:
            reason = str(error)
        if reason:
            refused.append(RefusedRun(run_id=run.run_id, title=run.title, reason=reason))
        else:
            done += 1
    return BulkPart(done=done, refused=refused, next=found.next)


def retry_key(run_id: str) -> str:
    """Return the idempotency key of the retry of a run by a bulk action: a part that is repeated starts no second run."""
    return f"bulk retry of {run_id}"


def _check(wanted: BulkFilter) -> None:
    if wanted.action == "signal" and not wanted.step:
        raise ConfigError("name the waiting 'step' of the signal", source="bulk")


def _statuses(wanted: BulkFilter) -> tuple[RunStatus, ...]:
    suited = CAN_RETRY if wanted.action == "retry" else OPEN
    return tuple(status for status in suited if not wanted.statuses or status in wanted.statuses)


def _suits(run: RunSummary, wanted: BulkFilter) -> bool:
    if run.unreadable:
        return wanted.action == "cancel"
    return not run.retried_as if wanted.action == "retry" else run.status not in RUN_OVER


def _matching(runs: TenantClient, wanted: BulkFilter, until: float) -> Iterator[RunSummary]:
    statuses, before = _statuses(wanted), None
    if not statuses:
        return
    chosen = RunFilter(runs.tenant, statuses, wanted.kind, wanted.q, wanted.since, until)
    while True:
        page = listing.find_page(runs.engine.ledger, chosen, before=before, most=PAGE)
        yield from (run for run in page.runs if _suits(run, wanted))
        if (before := page.next) is None:
            return


def _waiting(runs: TenantClient, step: str) -> set[str]:
    """Return the runs in which a step of this name waits."""
    items = inbox.iterate(runs.engine.ledger, InboxFilter(runs.tenant))
    return {item.run_id for item in items if is_named(item.step, step)}


def _waits(runs: TenantClient, run: RunSummary, step: str) -> bool:
    return any(is_named(each, step) for each in runs.find(run.run_id).waiting_steps())
