"""Batches of a tenant: begin, find, pause, cancel and retry them; submit their rows, read and deliver results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

from cantata.engine.engine import Engine
from cantata.engine.start import accept_rows, check_labels, id_of_key
from cantata.errors import ConfigError, UnknownRunError
from cantata.features.audit.audit import recorded
from cantata.features.batches.batch_store import (
    BatchInfo,
    BatchMode,
    BatchStore,
    BatchTarget,
    Change,
    Delivered,
    newest_of,
    unknown,
)
from cantata.features.batches.rows import (
    UNTRIED,
    BatchPage,
    BatchRow,
    Row,
    RowRequests,
    row_of,
    rows_by_run,
    run_id_of_row,
)
from cantata.features.webhooks.webhooks import accept_delivery, raise_alerts, with_attempts
from cantata.flows.definitions import fault_of_url
from cantata.flows.webhooks import check_target
from cantata.flows.wire import ChainRequest, TurnRequest, WebhookRequest
from cantata.ledger.encoding import to_json
from cantata.ledger.quotas import MAX_TENANTS
from cantata.ledger.runs import outcomes
from cantata.values import JsonValue, stored

MIN_JUDGED_ROWS = 20  # delivered rows, before the share of those that failed raises an alert
MAX_FAILED_RUNS = 1000  # of delivered rows that failed, kept as other runs are; those of later rows are deleted at once
MAX_SCANNED = 5000  # rows without a delivered result that one page of results reads
CANCELLED_AT_ONCE = 1000
DELIVERED_AT_ONCE = 500  # rows, which one call records, with some three commands for each
ROUNDING = 1e-9  # so that a budget of ten rows pays ten, though their sum is not exact
UNBOUNDED = 2**40  # more rows than a batch has
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
BATCH_LABEL = "batch"
CONCURRENCY: Mapping[BatchMode, int] = {"live": 100, "provider": 50_000}


class Batches:
    """The batches of a tenant ("" for those without one). Raises ConfigError with code `unknown_batch` for one that is not kept."""

    def __init__(self, engine: Engine, tenant: str = "") -> None:
        self.engine = engine
        self._tenant = tenant

    def of(self, tenant: str) -> Batches:
        """Return the batches of another tenant."""
        return Batches(self.engine, tenant)

    @cached_property
    def store(self) -> BatchStore:
        """Their records."""
        return BatchStore(self.engine.ledger, self._tenant)

    def check_target(self, target: BatchTarget, columns: Mapping[str, str]) -> None:
        """Raise ConfigError unless the configuration has the receiver of a batch, and rows can be sent to it."""
        RowRequests(self.engine, target, columns)

    def open(
        self,
        name: str,
        target: BatchTarget,
        *,
        mode: BatchMode = "live",
        columns: Mapping[str, str] | None = None,
        source: str = "",
        out: str = "",
        file: str = "",
        ordered: bool = False,
        concurrency: int | None = None,
        budget_usd: float | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> BatchInfo:
        """Begin a batch, or go on with the one of this name, with this concurrency, budget, labels and webhooks.

        Raises ConfigError for an invalid name, and if the batch of this name has another target, file, mapping or `out`.
        """
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a batch's name has letters from A to Z, digits and . _ -, at most 100 of them; found {name[:110]!r}"
            )
        if budget_usd is not None and not (isinstance(budget_usd, int | float) and 0 < budget_usd < math.inf):
            raise ConfigError(f"budget_usd is {budget_usd!r}; it is a number of US dollars above 0")
        concurrency = CONCURRENCY[mode] if concurrency is None else concurrency
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; it is the number of rows that are open at most, from 1")
        identity: dict[str, JsonValue] = {
            "target": target.model_dump(), "mode": mode, "source": source, "columns": dict(columns or {}), "out": out, "ordered": ordered,
        }  # fmt: skip
        own = {**(labels or {}), **({"tenant": self._tenant} if self._tenant else {})}
        for to in webhooks:
            check_target(
                to,
                {
                    hook: each
                    for hook, each in self.engine.definitions.webhooks.items()
                    if each.labels.items() <= own.items()
                },
            )
        settings = {
            "file": file, "concurrency": str(concurrency), "budget_usd": "" if budget_usd is None else repr(budget_usd),
            "labels": to_json(dict(own)), "webhooks": to_json([*webhooks]),
        }  # fmt: skip
        check_labels(own)
        size = len(to_json(identity)) + sum(map(len, settings.values()))
        with self.engine.ledger.quotas.store(
            self._tenant, self.engine.definitions.limits.quota_of(self._tenant), size, name=self.store.item(name)
        ):
            _check_readable(self.store.find(name))
            _, found = self.store.open(name, identity, settings)
        known = found.model_dump()
        if differing := [field for field, value in identity.items() if known[field] != value]:
            what = ", ".join(
                {"source": "file", "columns": "mapping", "ordered": "order"}.get(each, each) for each in differing
            )
            raise ConfigError(
                f"batch {name!r} was begun with another {what}; go on with the same, or choose another name",
                code="batch_differs",
            )
        self._post_end(found)  # if whoever ended it could not
        return found

    def find(self, name: str) -> BatchInfo:
        """Return a batch as it is now. Raises ConfigError ('unreadable') if its record cannot be read."""
        found = self.store.find(name)
        if found is None:
            raise unknown(name)
        _check_readable(found)
        return found

    def known(self, name: str) -> BatchInfo | None:
        """Return the same, also one whose record cannot be read; None if there is none."""
        return self.store.find(name)

    def key_of(self, name: str) -> str:
        """Return the key by which the state of a batch is followed."""
        return self.store.key_of(name)

    def newest(self, most: int = 100) -> Sequence[BatchInfo]:
        """Return the newest batches, newest first."""
        return self.store.newest(most)

    def newest_of_all(self, most: int = 100) -> Sequence[BatchInfo]:
        """Return the newest batches of all tenants, for operators; of very many tenants, those of 1,000."""
        tenants, _ = self.engine.ledger.quotas.tenants(MAX_TENANTS)
        return newest_of(self.engine.ledger, tenants, most)

    def pause(self, name: str) -> BatchInfo:
        """Submit no more rows; open ones go on. Raises ConfigError ('batch_state') unless it is running."""
        with recorded(self.engine.ledger, "batch.pause", tenant=self._tenant, target=name):
            return self.change(name, "pause")

    def resume(self, name: str) -> BatchInfo:
        """Go on with a paused batch."""
        with recorded(self.engine.ledger, "batch.resume", tenant=self._tenant, target=name):
            return self.change(name, "resume")

    def cancel(self, name: str) -> BatchInfo:
        """End a batch for good, and cancel its open rows. One whose record cannot be read is deleted: its open rows go on."""
        if (known := self.store.find(name)) and known.unreadable:
            with recorded(self.engine.ledger, "batch.delete", tenant=self._tenant, target=name):
                self.store.discard(name)
            return known
        with recorded(self.engine.ledger, "batch.cancel", tenant=self._tenant, target=name) as entry:
            found = self.change(name, "cancel")
            rows = self.store.undelivered(name, 0, found.submitted)
            while part := [*islice(rows, CANCELLED_AT_ONCE)]:
                self.engine.ledger.runs.cancel_all([*rows_by_run(found, part)], by=entry.actor.signature())
        self._post_end(found)
        return found

    def retry(self, name: str, *, out_bytes: int | None = None) -> BatchInfo:
        """Make the failed rows of a batch that is done undelivered again: whoever gives its rows again submits those alone."""
        with recorded(self.engine.ledger, "batch.retry", tenant=self._tenant, target=name):
            return self.change(name, "retry", out_bytes=out_bytes)

    def change(self, name: str, what: Change, *, out_bytes: int | None = None) -> BatchInfo:
        """Change the state of a batch. Raises ConfigError ('batch_state') if its state does not allow this."""
        self.find(name)
        was_changed, found = self.store.change(name, what, out_bytes=out_bytes)
        if found is None:
            raise unknown(name)
        wanted = {"pause": "paused", "resume": "running", "cancel": "cancelled", "spend": "budget_spent"}.get(what)
        if not was_changed and found.state != wanted:
            raise ConfigError(
                f"batch {name!r} {_REFUSALS[what].format(state=found.state.replace('_', ' '))}", code="batch_state"
            )
        return found

    def submit(
        self, batch: BatchInfo, requests: RowRequests, rows: Mapping[int, str], labels: Mapping[str, str]
    ) -> dict[int, str]:
        """Submit rows, with their requests, as far as the tenant's quota allows; return the runs of those submitted.

        A repetition is harmless: each row has one run in a round.

        Raises ConfigError ('quota_exceeded') if it allows none.
        """
        engine = self.engine
        quota = engine.definitions.limits.quota_of(self._tenant)
        room = engine.ledger.quotas.check(self._tenant, quota)
        runs: dict[str, list[int]] = {}
        size = 0
        for run_id, numbers in islice(rows_by_run(batch, rows).items(), room.runs):
            size += sum(len(rows[row]) for row in numbers)
            if runs and room.bytes is not None and size > room.bytes:
                break
            runs[run_id] = numbers
        if not runs:
            return {}
        with engine.ledger.quotas.store(
            self._tenant, quota, sum(len(rows[row]) for numbers in runs.values() for row in numbers)
        ):
            self._accept(batch, requests, runs, rows, labels)
        return {row: run_id for run_id, numbers in runs.items() for row in numbers}

    def _accept(
        self,
        batch: BatchInfo,
        requests: RowRequests,
        runs: Mapping[str, Sequence[int]],
        rows: Mapping[int, str],
        labels: Mapping[str, str],
    ) -> None:
        """Accept the runs of rows."""
        engine = self.engine
        self.store.record(batch, submitted=max(map(max, runs.values())) + 1)
        wanted = {
            run_id: requests.of_run({row: rows[row] for row in numbers}, is_again=min(numbers) < batch.submitted)
            for run_id, numbers in runs.items()
        }
        definitions = engine.definitions if batch.mode == "live" else with_attempts(engine.definitions)
        accept_rows(
            engine.ledger,
            engine.publisher,
            wanted,
            kind=requests.kind,
            batch=self.store.scope(batch.name),
            definitions=definitions,
            definitions_text=engine.definitions_text,
            timeout=requests.timeout,
            labels={**labels, BATCH_LABEL: batch.name, **({"tenant": self._tenant} if self._tenant else {})},
            target=batch.target.name,
            queue=requests.queue,
        )

    def deliver(
        self, batch: BatchInfo, rows: Sequence[BatchRow], *, out_bytes: int | None = None, total: int | None = None
    ) -> BatchInfo:
        """Record that the results of rows were delivered, and delete their runs; return the batch after that."""
        delivered = [Delivered(each.row, each.has_failed, each.usage, each.is_priced) for each in rows]
        found = self.store.record(batch, delivered=delivered, out_bytes=out_bytes, total=total)
        kept = set() if found.failed > MAX_FAILED_RUNS else {each.run_id for each in rows if each.has_failed}
        self.engine.ledger.runs.drop([*{each.run_id for each in rows if each.run_id} - kept])
        self._raise_alerts(found)
        self._post_end(found)
        return found

    def _post_end(self, batch: BatchInfo) -> None:
        """Post the end of a batch to its webhooks: once in a round, however often this is called."""
        engine = self.engine
        for to in batch.webhooks if batch.is_over else ():
            if to not in engine.definitions.webhooks and fault_of_url(to):
                continue  # whoever begins it again has the configuration that names it
            counts = batch.model_dump(mode="json", include={"state", "total", "delivered", "failed", "round", "usage"})
            text = f"batch {batch.name!r} is {batch.state}: {batch.delivered:,} rows, {batch.failed:,} failed"
            request = WebhookRequest(
                id=id_of_key(f"end of batch {batch.uid} {batch.round}\n{to}"),
                text=text,
                to=to,
                event="end",
                at_ms=round((batch.closed_at or 0) * 1000),
                data={"batch": batch.name, **counts},
            )
            accept_delivery(engine.ledger, request, engine.definitions, engine.definitions_text, tenant=self._tenant)

    def _raise_alerts(self, batch: BatchInfo) -> None:
        """Raise the alerts `batch_failures` of the configuration, once in a round of a batch."""
        if not batch.failed or batch.delivered < MIN_JUDGED_ROWS:
            return
        share, engine = batch.failed / batch.delivered, self.engine
        raise_alerts(
            engine.ledger,
            engine.definitions,
            engine.definitions_text,
            "batch_failures",
            key=f"batch {batch.uid} {batch.round}",
            message=f"{batch.failed:,} of {batch.delivered:,} rows of batch {batch.name!r} failed",
            tenant=self._tenant,
            data={"batch": batch.name, "failed": batch.failed, "delivered": batch.delivered},
            applies=lambda alert: share > alert.share and alert.name in (None, batch.target.name),
        )

    def results(self, name: str, start: int = 0, most: int = 100) -> BatchPage:
        """Return results that are kept and were not delivered: of rows that are over, from a row on."""
        batch = self.find(name)
        return self._page(batch, self.store.undelivered(name, start, batch.submitted), most)

    def failed(self, name: str, start: int = 0, most: int = 100) -> BatchPage:
        """Return delivered rows that failed, from a row on, with their errors as far as their runs are kept."""
        batch = self.find(name)
        return self._page(batch, self.store.failed(name, start, batch.submitted), most, keeps_unknown=True)

    def failed_rows(self, batch: BatchInfo) -> Iterator[int]:
        """Yield the numbers of the delivered rows that failed."""
        return self.store.failed(batch.name, 0, batch.submitted)

    def acknowledge(self, name: str, numbers: Sequence[int]) -> BatchInfo:
        """Record that results were delivered, by the numbers of their rows; those that are not over do not count."""
        batch = self.find(name)
        if batch.mode == "provider":  # its runs have many rows, and go when all of them are delivered
            raise ConfigError(f"batch {name!r} is delivered by whoever feeds it", code="batch_state")
        rows = [row for row in sorted(set(numbers)) if 0 <= row < batch.submitted]
        for start in range(0, max(1, len(rows)), DELIVERED_AT_ONCE):
            part = rows[start : start + DELIVERED_AT_ONCE]
            batch = self.deliver(batch, self._page(batch, iter(part), len(part)).rows)
        return batch

    def _page(self, batch: BatchInfo, numbers: Iterator[int], most: int, *, keeps_unknown: bool = False) -> BatchPage:
        found: list[BatchRow] = []
        scanned, after = 0, None
        while len(found) < most and (part := [*islice(numbers, min(most, 500))]):
            over, _ = outcomes.ended(self.engine.ledger, [*rows_by_run(batch, part)])
            for row in part:
                run_id, after = run_id_of_row(batch, row), row + 1
                if run_id in over:
                    found.append(row_of(batch, row, run_id, over[run_id]))
                elif keeps_unknown:
                    found.append(BatchRow(row=row, status="failed", run_id=run_id))
                if len(found) == most:
                    break
            scanned += len(part)
            if scanned >= MAX_SCANNED:
                break
        else:
            after = after if len(found) == most else None
        return BatchPage(rows=found, next=after if after is not None and after < batch.submitted else None)

    # --- rows that a caller gives in pieces -------------------------------------------------------------------------

    def add_rows(
        self, name: str, rows: Mapping[int, Row], labels: Mapping[str, str], *, start: int, last: bool = False
    ) -> tuple[int, int, BatchInfo]:
        """Submit as many rows as may be open; return how many were accepted, the next row, and the batch. A repetition is harmless.

        Args:
            name: The batch.
            rows: The rows by their numbers, from `start` on without a gap.
            labels: Labels of the runs.
            start: The number of the first row.
            last: Whether no row follows.

        Raises:
            ConfigError: 'batch_state' if the batch takes no such rows or its budget is spent, 'batch_full' if none may be open now.
        """
        batch = self.find(name)
        if batch.state != "running":
            raise ConfigError(
                f"batch {name!r} is {batch.state.replace('_', ' ')} and takes no rows", code="batch_state"
            )
        if batch.file or batch.mode == "provider":
            raise ConfigError(
                f"batch {name!r} gets its rows from the command or program that began it", code="batch_state"
            )
        self._check_feeder(name)
        if start > batch.submitted:
            raise ConfigError(
                f"row {batch.submitted} comes next, not {start}: rows are submitted in order", code="batch_state"
            )
        requests = RowRequests(self.engine, batch.target, batch.columns)
        new = {row: requests.request(row, rows[row]) for row in rows if row >= batch.submitted}
        waiting = batch.submitted - batch.delivered
        taken = [*new][: self._room(batch, waiting, batch.concurrency, f"row {batch.submitted}")] if new else []
        done = self.submit(batch, requests, {row: new[row] for row in taken}, labels) if taken else {}
        after = max([batch.submitted - 1, *done]) + 1
        is_last = last and after == start + len(rows)
        return len(done), after, self.deliver(batch, (), total=after if is_last else None)

    def retry_rows(self, name: str, labels: Mapping[str, str]) -> BatchInfo:
        """Retry the failed rows of a batch that is done, with the inputs that their runs keep.

        A repetition goes on where a quota or the budget stopped the last one.

        Raises ConfigError: 'batch_state' for a batch whose rows are in a file, if its budget is spent, or an input is no longer kept;
        'batch_full' if no further row may be open now.
        """
        batch = self.find(name)
        if batch.file:
            raise ConfigError(
                f"the rows of batch {name!r} are in a file: use `submit batch retry {name}` there", code="batch_state"
            )
        if batch.mode == "provider":
            raise ConfigError(
                f"batches of a provider answer batch {name!r}: give its rows again where it was begun",
                code="batch_state",
            )
        self._check_feeder(name)
        goes_on = batch.state == "running" and batch.round > 0
        rows = [*(self.store.undelivered if goes_on else self.store.failed)(name, 0, batch.submitted)]
        before, waiting = batch.model_copy(update={"round": batch.round - goes_on}), 0
        if goes_on:  # those with a run in this round wait to be delivered
            _, missing = outcomes.ended(self.engine.ledger, [*rows_by_run(batch, rows)])
            waiting, rows = len(rows) - len(missing), [row for row in rows if run_id_of_row(batch, row) in missing]
        if goes_on and not rows:
            return batch
        room = self._room(batch, waiting, UNBOUNDED, "the retry") if rows else 0
        requests = RowRequests(self.engine, batch.target, {})
        try:
            given = {row: requests.request(row, self._input(run_id_of_row(before, row), batch.target)) for row in rows}
        except UnknownRunError:
            message = f"not every failed row of batch {name!r} keeps its input; give the rows again where it was begun"
            raise ConfigError(message, code="batch_state") from None
        batch = batch if goes_on else self.retry(name)
        self.submit(batch, requests, {row: given[row] for row in rows[:room]}, {**batch.labels, **labels})
        return self.find(name)

    def _check_feeder(self, name: str) -> None:
        """Raise ConfigError ('batch_state') if a process feeds a batch: neither knew the open rows of the other, so no bound would hold."""
        if feeder := self.store.feeder(name):
            raise ConfigError(
                f"batch {name!r} is fed by {feeder}; wait until that ends, or stop it", code="batch_state"
            )

    def _room(self, batch: BatchInfo, waiting: int, most: int, rest: str) -> int:
        """Return how many rows may be submitted beside those that wait to be delivered, if so many may be open; ConfigError if none."""
        check_prices(batch, batch.unpriced)
        room = min(most, affordable_rows(batch, batch.usage.cost_usd, batch.priced)) - waiting
        if room > 0:
            return room
        if waiting:
            message = f"{waiting} rows wait to be delivered: read and acknowledge results, then go on with {rest}"
            raise ConfigError(message, code="batch_full")
        if batch.state == "running":
            self.change(batch.name, "spend")
        raise ConfigError(
            f"the budget of batch {batch.name!r} is spent; begin it again with a higher budget_usd", code="batch_state"
        )

    def _input(self, run_id: str, target: BatchTarget) -> Row:
        """Return the input of a row, from the request of its run."""
        _, text, _, _ = self.engine.ledger.runs.request_of(run_id)
        if target.kind in ("agent", "team"):
            return stored(TurnRequest, text).text
        request = stored(ChainRequest, text)
        return request.nodes[0].input if target.kind == "workflow" else request.initial_input


_REFUSALS: Mapping[Change, str] = {
    "pause": "is {state}, so it cannot be paused",
    "resume": "is {state}, not paused; to go on with one whose budget is spent, submit it with a higher budget",
    "cancel": "is {state} already",
    "spend": "is {state}",
    "retry": "is {state}, or no row of it failed; only the failed rows of one that is done can be retried",
}


def _check_readable(batch: BatchInfo | None) -> None:
    """Raise ConfigError ('unreadable') for a batch whose record cannot be read: its budget is not known."""
    if batch and batch.unreadable:
        raise ConfigError(batch.unreadable, source=f"batch {batch.name!r}", code="unreadable")


def affordable_rows(batch: BatchInfo, cost_usd: float | None, priced: int) -> int:
    """Return how many rows may be open within the budget of a batch, if each costs the average of those that cost something.

    Rows that failed or whose replies were cached may have cost nothing, and tell no price. Until one does, UNTRIED rows may be open;
    afterwards at most as many as have shown one, since the first ones may be the cheap ones.

    Args:
        batch: The batch, with its budget.
        cost_usd: The cost of its rows so far; None if no price was known.
        priced: The number of rows that cost something.
    """
    if batch.budget_usd is None:
        return UNBOUNDED
    if not cost_usd or not priced:
        return UNTRIED
    affordable = int(min(UNBOUNDED, max(0.0, (batch.budget_usd - cost_usd) * priced / cost_usd + ROUNDING)))
    return affordable if batch.mode == "provider" else min(affordable, max(UNTRIED, priced))


def check_prices(batch: BatchInfo, unpriced: int) -> None:
    """Raise ConfigError ('batch_state') if a batch with a budget has rows whose price is not known."""
    if batch.budget_usd is not None and unpriced:
        message = (
            f"the price of a model of {batch.target.name!r} is not known, so budget_usd cannot hold; go on without it"
        )
        raise ConfigError(message, code="batch_state")


def batch_target(**named: str | None) -> BatchTarget:
    """Return the receiver of a batch's rows, of which exactly one of agent, team, chain and workflow is named. Raises ConfigError."""
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) != 1:
        found = " and ".join(kind for kind, _ in given) or "none"
        raise ConfigError(
            f"a batch needs exactly one of agent, team, chain and workflow; found {found}", source="batch"
        )
    return BatchTarget.model_validate({"kind": given[0][0], "name": given[0][1]})
