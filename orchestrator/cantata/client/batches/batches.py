"""Batches of a tenant: begin, find, pause, cancel and retry them; submit their rows, read and deliver results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from cantata.client.batches.text_rows import BAD_VALUE, TextRow, converted
from cantata.engine.run_requests import workflow_request
from cantata.engine.start import COORDINATOR, Timeout, accept_rows, check_labels, choose_start_queue, id_of_key
from cantata.errors import ConfigError
from cantata.features.batches.batch_store import BatchInfo, BatchMode, BatchStore, BatchTarget, Change, Delivered, unknown
from cantata.features.webhooks.webhooks import accept_delivery, raise_alerts, with_attempts
from cantata.flows import bounds
from cantata.flows.chains import declared_inputs
from cantata.flows.chains.declared_inputs import DeclaredInputs, inputs_read
from cantata.flows.definitions import fault_of_url
from cantata.flows.provider_batches import fault_of_agent
from cantata.flows.turns import turn_plan
from cantata.flows.values import ErrorInfo, JsonValue, Usage, Value, as_text
from cantata.flows.webhooks import check_target
from cantata.flows.wire import ChainRequest, ProviderBatchRequest, RowOutcome, RunState, TurnRequest, WebhookRequest
from cantata.ledger.encoding import to_json
from cantata.ledger.runs import outcomes

if TYPE_CHECKING:
    from cantata.client.client import Client

MIN_JUDGED_ROWS = 20  # delivered rows, before the share of those that failed raises an alert
MAX_FAILED_RUNS = 1000  # of delivered rows that failed, kept as other runs are; those of later rows are deleted at once
MAX_SCANNED = 5000  # rows without a delivered result that one page of results reads
CANCELLED_AT_ONCE = 1000
DELIVERED_AT_ONCE = 500  # rows, which one call records, with some three commands for each
UNTRIED = 10  # rows that are open at most while a batch with a budget does not know what a row costs; rows of a small batch of a provider
ROUNDING = 1e-9  # so that a budget of ten rows pays ten, though their sum is not exact
UNBOUNDED = 2**40  # more rows than a batch has
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
BATCH_LABEL = "batch"
PROVIDER_ROWS = 500  # of a provider's batch: those whose numbers have the same quotient; a multiple of UNTRIED
CONCURRENCY: Mapping[BatchMode, int] = {"live": 100, "provider": 50_000}
PROVIDER_TIMEOUT = Timeout(26 * 3600.0, "of provider batches")  # the providers' own limit is a day

Row = str | Mapping[str, JsonValue]
"""A row as it is given: a text, or its columns."""


class BatchRow(Value):
    """A row of a batch, and its result. A failed one has an `error`, and may have an output."""

    row: int = Field(description="its number, from 0")
    input: JsonValue = Field(None, description="the row as it was given")
    status: RunState = Field(description="succeeded, succeeded_with_failures, failed, cancelled, timed_out or exhausted")
    output: JsonValue = Field(None, description="the answer of a turn, the final output of a chain or workflow")
    error: ErrorInfo | None = Field(None, description="why it failed")
    run_id: str = Field("", description="its run, which is deleted when the result of a row that succeeded is delivered")
    usage: Usage = Field(default_factory=Usage, description="its consumption")
    is_priced: bool = Field(True, exclude=True, description="whether the price of each of its model calls is known")

    @property
    def has_failed(self) -> bool:
        """True if it counts as failed: also one that succeeded though steps failed."""
        return self.status != "succeeded"


class BatchPage(Value):
    """Rows of a batch, by their number."""

    rows: list[BatchRow] = Field(description="in the order of their numbers")
    next: int | None = Field(None, description="what `start` is for the rest; null if there is none now")


class RowRequests:
    """Makes the requests of a batch's rows. Raises ConfigError for a target that the configuration does not have."""

    def __init__(self, client: Client, target: BatchTarget, columns: Mapping[str, str], mode: BatchMode = "live") -> None:
        self._client, self._columns = client, columns
        is_turn = target.kind in ("agent", "team")
        self.kind: Literal["turn", "chain", "batch"] = "batch" if mode == "provider" else "turn" if is_turn else "chain"
        self._target = target
        self._queue = COORDINATOR
        self.timeout = Timeout(None, "")
        if mode == "provider":
            if target.kind != "agent":
                raise ConfigError(f"in mode 'provider' a model answers the rows, not a {target.kind}; name an agent", source="batch")
            fault = fault_of_agent(target.name, client.definitions) if target.name in client.definitions.agents else None
            if fault:
                raise ConfigError(fault, source="batch")
            self.timeout = PROVIDER_TIMEOUT
        chain = client.definitions.chains.get(target.name) if target.kind == "chain" else None
        self._inputs = inputs_read(chain) if chain else []
        if is_turn:
            self._turn = TurnRequest.model_validate({"text": "", target.kind: target.name})
            if faults := turn_plan.check_turn(self._turn.model_copy(update={"text": "text"}), client.definitions):
                raise ConfigError(faults, source="batch")
            agent = client.definitions.agents.get(target.name) if target.kind == "agent" else None
            self._queue = agent.queue if agent else "agents"  # whoever plans a row goes on with it at once

    @property
    def queue(self) -> str:
        """The queue of a row's first step; of a chain, as of the newest request."""
        return self._queue

    def of_run(self, rows: Mapping[int, str], *, is_again: bool) -> str:
        """Return the request of the run of rows, with their requests; `is_again` if they may have been submitted before."""
        if self.kind != "batch":
            return next(iter(rows.values()))
        text = f"rows {min(rows):,} to {max(rows):,} to {self._target.name} as a batch of its model's provider"
        named = {str(number): text for number, text in rows.items()}
        return ProviderBatchRequest(text=text, agent=self._target.name, rows=named, is_again=is_again).model_dump_json()

    def request(self, number: int, row: Row) -> str:
        """Return the request of a row as JSON text; its text for a provider's batch. Raises ConfigError."""
        if not isinstance(row, str | Mapping):
            raise ConfigError(f"row {number} is a {type(row).__name__}; a row is a text or an object", source="batch")
        bounds.check(row if isinstance(row, str) else dict(row), f"row {number}", max_bytes=self._client.definitions.limits.input_bytes)
        try:
            return self._request(number, row)
        except ConfigError:
            raise
        except ValueError as error:  # such as half a character
            raise ConfigError(f"row {number} cannot be stored as JSON: {error}", source="batch") from error

    def _request(self, number: int, row: Row) -> str:
        fields = row if isinstance(row, str) else {self._columns.get(name, name): value for name, value in row.items()}
        if self.kind == "batch":
            text, most = _text(number, fields), self._client.definitions.limits.input_bytes // PROVIDER_ROWS
            if len(json.dumps(text)) > most:
                message = f"row {number} is larger than {most / 1000:,.0f} kB, a row's part of limits.input_bytes in mode 'provider'"
                raise ConfigError(f"{message}; raise that limit, or leave out the mode", source="batch", code=BAD_VALUE)
            return text
        if self.kind == "turn":
            return self._turn.model_copy(update={"text": _text(number, fields)}).model_dump_json(exclude_defaults=True)
        if isinstance(fields, str):
            raise ConfigError(f"row {number} is a text; the rows of a {self._target.kind} are objects: its input", source="batch")
        if self._inputs and fields.keys().isdisjoint(self._inputs):
            found, read = (", ".join(map(repr, [*names][:10])) or "none" for names in (fields, self._inputs))
            message = f"row {number} has none of the inputs that chain {self._target.name!r} reads ({read}); its columns are {found}"
            raise ConfigError(f"{message}: give one of them that name with --map", source="batch")
        if self._target.kind == "workflow":
            request = self._client._checked_request(workflow_request(self._target.name, fields, self._client.definitions))
        else:
            request = self._chain_request(row, fields)
        self.timeout = Timeout(request.timeout or None, "timeout of the request")
        self._queue = choose_start_queue(request, self._client.definitions, self._client._costs())
        return request.model_copy(update={"chain_id": request.chain_id or self._target.name}).model_dump_json(exclude_defaults=True)

    def _chain_request(self, row: Row, fields: dict[str, JsonValue]) -> ChainRequest:
        """Return the request of a chain. Raises ConfigError, with the code BAD_VALUE if only values of the row are at fault."""
        declared = self._declared
        if declared and isinstance(row, TextRow) and not [*declared.missing(fields), *declared.unknown(fields)]:
            fields = converted(row, self._columns, declared, self._target.name)
        try:
            return self._client._checked_request(self._target.name, fields)
        except ConfigError as error:
            is_named = declared is not None and not [*declared.missing(fields), *declared.unknown(fields)]
            code = BAD_VALUE if declared and is_named and [*declared.misfits(fields)] else error.code
            source = row.place if isinstance(row, TextRow) else error.source
            raise ConfigError(error.faults, source=source, code=code, asked=error.asked) from error

    @cached_property
    def _declared(self) -> DeclaredInputs | None:
        return declared_inputs.sound(self._client._request_of(self._target.name).inputs)


def _text(number: int, row: Row) -> str:
    """Return the text of a turn: the field `text`, or the only field."""
    if isinstance(row, str):
        return row
    if "text" not in row and len(row) != 1:
        found = ", ".join(map(repr, list(row)[:10])) or "none"
        raise ConfigError(f"row {number} has no field 'text' (its fields: {found}); name one: --map FIELD=text", source="batch")
    return as_text(row["text"] if "text" in row else next(iter(row.values())))


def run_id_of_row(batch: BatchInfo, row: int) -> str:
    """Return the run of a row in the batch's round."""
    piece = str(row)
    if batch.mode == "provider":
        piece = f"small {row // UNTRIED}" if is_in_small_batch(batch, row) else f"provider {row // PROVIDER_ROWS}"
    return id_of_key(f"batch {batch.uid} {batch.round} {piece}")


def is_in_small_batch(batch: BatchInfo, row: int) -> bool:
    """Return whether a row is in a small batch of the provider; in a later round all are, if some were in the first."""
    if row < batch.small_to or (batch.small_from is not None and row >= batch.small_from):
        return True
    return batch.round > 0 and (batch.small_to > 0 or batch.small_from is not None)


def rows_left(row: int) -> int:
    """Return how many rows from this one on are in the same batch of a provider."""
    return PROVIDER_ROWS - row % PROVIDER_ROWS


def rows_by_run(batch: BatchInfo, rows: Iterable[int]) -> dict[str, list[int]]:
    """Return the runs of rows, each with those that it answers."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(run_id_of_row(batch, row), []).append(row)
    return found


class Batches:
    """The batches of a tenant ("" for those without one). Raises ConfigError with code `unknown_batch` for one that is not kept."""

    def __init__(self, client: Client, tenant: str = "") -> None:
        self.client = client
        self._tenant = tenant

    def of(self, tenant: str) -> Batches:
        """Return the batches of another tenant."""
        return Batches(self.client, tenant)

    @cached_property
    def store(self) -> BatchStore:
        """Their records."""
        return BatchStore(self.client.ledger, self._tenant)

    def open(
        self, name: str, target: BatchTarget, *, mode: BatchMode = "live", columns: Mapping[str, str] | None = None, source: str = "",
        out: str = "", file: str = "", ordered: bool = False, concurrency: int | None = None, budget_usd: float | None = None,
        labels: Mapping[str, str] | None = None, webhooks: Sequence[str] = (),
    ) -> BatchInfo:  # fmt: skip
        """Begin a batch, or go on with the one of this name, with this concurrency, budget, labels and webhooks.

        Raises ConfigError for an invalid name, and if the batch of this name has another target, file, mapping or `out`.
        """
        if not NAME.fullmatch(name):
            raise ConfigError(f"a batch's name has letters from A to Z, digits and . _ -, at most 100 of them; found {name[:110]!r}")
        if budget_usd is not None and not (isinstance(budget_usd, int | float) and 0 < budget_usd < math.inf):
            raise ConfigError(f"budget_usd is {budget_usd!r}; it is a number of US dollars above 0")
        concurrency = CONCURRENCY[mode] if concurrency is None else concurrency
        if budget_usd is not None and not 0 < budget_usd < math.inf:
            raise ConfigError(f"budget_usd is {budget_usd}; it is a number of US dollars above 0, or None for no budget", source="batch")
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; it is the number of rows that are open at most, from 1")
        identity: dict[str, JsonValue] = {
            "target": target.model_dump(), "mode": mode, "source": source, "columns": dict(columns or {}), "out": out, "ordered": ordered,
        }  # fmt: skip
        own = {**(labels or {}), **({"tenant": self._tenant} if self._tenant else {})}
        for to in webhooks:
            check_target(to, {hook: each for hook, each in self.client.definitions.webhooks.items() if each.labels.items() <= own.items()})
        settings = {
            "file": file, "concurrency": str(concurrency), "budget_usd": "" if budget_usd is None else repr(budget_usd),
            "labels": to_json(dict(own)), "webhooks": to_json([*webhooks]),
        }  # fmt: skip
        check_labels(own)
        size = len(to_json(identity)) + sum(map(len, settings.values()))
        with self.client.ledger.quotas.store(
            self._tenant, self.client.definitions.limits.quota_of(self._tenant), size, name=self.store.item(name)
        ):
            _check_readable(self.store.find(name))
            _, found = self.store.open(name, identity, settings)
        known = found.model_dump()
        if differing := [field for field, value in identity.items() if known[field] != value]:
            what = ", ".join({"source": "file", "columns": "mapping", "ordered": "order"}.get(each, each) for each in differing)
            raise ConfigError(
                f"batch {name!r} was begun with another {what}; go on with the same, or choose another name", code="batch_differs"
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

    def newest(self, most: int = 100) -> Sequence[BatchInfo]:
        """Return the newest batches, newest first."""
        return self.store.newest(most)

    def pause(self, name: str) -> BatchInfo:
        """Submit no more rows; open ones go on. Raises ConfigError ('batch_state') unless it is running."""
        return self.change(name, "pause")

    def resume(self, name: str) -> BatchInfo:
        """Go on with a paused batch."""
        return self.change(name, "resume")

    def cancel(self, name: str) -> BatchInfo:
        """End a batch for good, and cancel its open rows. One whose record cannot be read is deleted: its open rows go on."""
        if (known := self.store.find(name)) and known.unreadable:
            self.store.discard(name)
            return known
        found = self.change(name, "cancel")
        rows = self.store.undelivered(name, 0, found.submitted)
        while part := [*islice(rows, CANCELLED_AT_ONCE)]:
            self.client.ledger.runs.cancel_all([*rows_by_run(found, part)])
        self._post_end(found)
        return found

    def retry(self, name: str, *, out_bytes: int | None = None) -> BatchInfo:
        """Make the failed rows of a batch that is done undelivered again: whoever gives its rows again submits those alone."""
        return self.change(name, "retry", out_bytes=out_bytes)

    def change(self, name: str, what: Change, *, out_bytes: int | None = None) -> BatchInfo:
        """Change the state of a batch. Raises ConfigError ('batch_state') if its state does not allow this."""
        self.find(name)
        was_changed, found = self.store.change(name, what, out_bytes=out_bytes)
        if found is None:
            raise unknown(name)
        wanted = {"pause": "paused", "resume": "running", "cancel": "cancelled", "spend": "budget_spent"}.get(what)
        if not was_changed and found.state != wanted:
            raise ConfigError(f"batch {name!r} {_REFUSALS[what].format(state=found.state.replace('_', ' '))}", code="batch_state")
        return found

    def submit(self, batch: BatchInfo, requests: RowRequests, rows: Mapping[int, str], labels: Mapping[str, str]) -> dict[int, str]:
        """Submit rows, with their requests, as far as the tenant's quota allows; return the runs of those submitted.

        A repetition is harmless: each row has one run in a round.

        Raises ConfigError ('quota_exceeded') if it allows none.
        """
        client = self.client
        quota = client.definitions.limits.quota_of(self._tenant)
        room = client.ledger.quotas.check(self._tenant, quota)
        runs: dict[str, list[int]] = {}
        size = 0
        for run_id, numbers in islice(rows_by_run(batch, rows).items(), room.runs):
            size += sum(len(rows[row]) for row in numbers)
            if runs and room.bytes is not None and size > room.bytes:
                break
            runs[run_id] = numbers
        if not runs:
            return {}
        with client.ledger.quotas.store(self._tenant, quota, sum(len(rows[row]) for numbers in runs.values() for row in numbers)):
            self._accept(batch, requests, runs, rows, labels)
        return {row: run_id for run_id, numbers in runs.items() for row in numbers}

    def _accept(
        self, batch: BatchInfo, requests: RowRequests, runs: Mapping[str, Sequence[int]], rows: Mapping[int, str],
        labels: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Accept the runs of rows."""
        client = self.client
        self.store.record(batch, submitted=max(map(max, runs.values())) + 1)
        wanted = {
            run_id: requests.of_run({row: rows[row] for row in numbers}, is_again=min(numbers) < batch.submitted)
            for run_id, numbers in runs.items()
        }  # fmt: skip
        definitions = client.definitions if batch.mode == "live" else with_attempts(client.definitions)
        accept_rows(
            client.ledger, client.app, wanted, kind=requests.kind,
            batch=self.store.scope(batch.name), definitions=definitions, definitions_text=client.definitions_text,
            timeout=requests.timeout, labels={**labels, BATCH_LABEL: batch.name, **({"tenant": self._tenant} if self._tenant else {})},
            queue=requests.queue,
        )  # fmt: skip

    def deliver(self, batch: BatchInfo, rows: Sequence[BatchRow], *, out_bytes: int | None = None, total: int | None = None) -> BatchInfo:
        """Record that the results of rows were delivered, and delete their runs; return the batch after that."""
        delivered = [Delivered(each.row, each.has_failed, each.usage, each.is_priced) for each in rows]
        found = self.store.record(batch, delivered=delivered, out_bytes=out_bytes, total=total)
        kept = set() if found.failed > MAX_FAILED_RUNS else {each.run_id for each in rows if each.has_failed}
        self.client.ledger.runs.drop([*{each.run_id for each in rows if each.run_id} - kept])
        self._raise_alerts(found)
        self._post_end(found)
        return found

    def _post_end(self, batch: BatchInfo) -> None:
        """Post the end of a batch to its webhooks: once in a round, however often this is called."""
        client = self.client
        for to in batch.webhooks if batch.is_over else ():
            if to not in client.definitions.webhooks and fault_of_url(to):
                continue  # whoever begins it again has the configuration that names it
            counts = batch.model_dump(mode="json", include={"state", "total", "delivered", "failed", "round", "usage"})
            text = f"batch {batch.name!r} is {batch.state}: {batch.delivered:,} rows, {batch.failed:,} failed"
            request = WebhookRequest(
                id=id_of_key(f"end of batch {batch.uid} {batch.round}\n{to}"), text=text, to=to, event="end",
                at_ms=round((batch.closed_at or 0) * 1000), data={"batch": batch.name, **counts},
            )  # fmt: skip
            accept_delivery(client.ledger, request, client.definitions, client.definitions_text, tenant=self._tenant)

    def _raise_alerts(self, batch: BatchInfo) -> None:
        """Raise the alerts `batch_failures` of the configuration, once in a round of a batch."""
        if not batch.failed or batch.delivered < MIN_JUDGED_ROWS:
            return
        share, client = batch.failed / batch.delivered, self.client
        raise_alerts(
            client.ledger, client.definitions, client.definitions_text, "batch_failures", key=f"batch {batch.uid} {batch.round}",
            message=f"{batch.failed:,} of {batch.delivered:,} rows of batch {batch.name!r} failed", tenant=self._tenant,
            data={"batch": batch.name, "failed": batch.failed, "delivered": batch.delivered},
            applies=lambda alert: share > alert.share and alert.name in (None, batch.target.name),
        )  # fmt: skip

    def results(self, name: str, start: int = 0, most: int = 100) -> BatchPage:
        """Return results that are kept and were not delivered: of rows that are over, from a row on."""
        batch = self.find(name)
        return self._page(batch, self.store.undelivered(name, start, batch.submitted), most)

    def failed(self, name: str, start: int = 0, most: int = 100) -> BatchPage:
        """Return delivered rows that failed, from a row on, with their errors as far as their runs are kept."""
        batch = self.find(name)
        return self._page(batch, self.store.failed(name, start, batch.submitted), most, keeps_unknown=True)

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
            over, _ = outcomes.ended(self.client.ledger, [*rows_by_run(batch, part)])
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
        message = f"the price of a model of {batch.target.name!r} is not known, so budget_usd cannot hold; go on without it"
        raise ConfigError(message, code="batch_state")


def row_of(batch: BatchInfo, number: int, run_id: str, ended: outcomes.EndedRow, given: JsonValue = None) -> BatchRow:
    """Return a row with the outcome of its run, or its part of it."""
    if batch.mode == "provider" and isinstance(ended.output, dict) and str(number) in ended.output:
        part = RowOutcome.model_validate(ended.output[str(number)])
        status: RunState = "failed" if part.error else "succeeded"
        is_priced = part.usage.cost_usd is not None or not part.usage.model_calls
        ended = outcomes.EndedRow(status, part.output, part.error, part.usage, is_priced)
    elif batch.mode == "provider":
        error = ended.error or ErrorInfo(code="row_missing", message=f"run {run_id!r} has no outcome of this row; retry the row")
        ended = outcomes.EndedRow("failed" if ended.state == "succeeded" else ended.state, None, error, Usage())
    return BatchRow(
        row=number, input=given, status=ended.state, output=ended.output, error=ended.error, run_id=run_id, usage=ended.usage,
        is_priced=ended.is_priced,
    )  # fmt: skip


def batch_target(**named: str | None) -> BatchTarget:
    """Return the receiver of a batch's rows, of which exactly one of agent, team, chain and workflow is named. Raises ConfigError."""
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) != 1:
        found = " and ".join(kind for kind, _ in given) or "none"
        raise ConfigError(f"a batch needs exactly one of agent, team, chain and workflow; found {found}", source="batch")
    return BatchTarget.model_validate({"kind": given[0][0], "name": given[0][1]})
