"""Rows of batches that nobody feeds: a caller gives them in pieces; failed ones are retried with the inputs that their runs keep."""

from __future__ import annotations

from collections.abc import Mapping

from cantata.client.batches.batches import (
    UNBOUNDED,
    Batches,
    Row,
    RowRequests,
    affordable_rows,
    check_prices,
    rows_by_run,
    run_id_of_row,
)  # fmt: skip
from cantata.client.client import Client
from cantata.errors import ConfigError, UnknownRunError
from cantata.features.batches.batch_store import BatchInfo, BatchTarget
from cantata.flows.values import stored
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.ledger.runs import outcomes


def submit(
    client: Client, batches: Batches, name: str, rows: Mapping[int, Row], labels: Mapping[str, str], *, start: int, last: bool = False
) -> tuple[int, int, BatchInfo]:
    """Submit as many rows as may be open; return how many were accepted, the row to go on with, and the batch. A repetition is harmless.

    Args:
        client: Has the configuration of the receiver.
        batches: Those of the tenant.
        name: The batch.
        rows: The rows by their numbers, from `start` on without a gap.
        labels: Labels of the runs.
        start: The number of the first row.
        last: Whether no row follows.

    Raises:
        ConfigError: 'batch_state' if the batch takes no such rows or its budget is spent, 'batch_full' if none may be open now.
    """
    batch = batches.find(name)
    if batch.state != "running":
        raise ConfigError(f"batch {name!r} is {batch.state.replace('_', ' ')} and takes no rows", code="batch_state")
    if batch.file or batch.mode == "provider":
        raise ConfigError(f"batch {name!r} gets its rows from the command or program that began it", code="batch_state")
    _check_feeder(batches, name)
    if start > batch.submitted:
        raise ConfigError(f"row {batch.submitted} comes next, not {start}: rows are submitted in order", code="batch_state")
    requests = RowRequests(client, batch.target, batch.columns)
    new = {row: requests.request(row, rows[row]) for row in rows if row >= batch.submitted}
    waiting = batch.submitted - batch.delivered
    taken = [*new][: _room(batches, batch, waiting, batch.concurrency, f"row {batch.submitted}")] if new else []
    done = batches.submit(batch, requests, {row: new[row] for row in taken}, labels) if taken else {}
    after = max([batch.submitted - 1, *done]) + 1
    is_last = last and after == start + len(rows)
    return len(done), after, batches.deliver(batch, (), total=after if is_last else None)


def retry(client: Client, batches: Batches, name: str, labels: Mapping[str, str]) -> BatchInfo:
    """Retry the failed rows of a batch that is done; a repetition goes on where a quota or the budget stopped the last one.

    Raises ConfigError: 'batch_state' for a batch whose rows are in a file, if its budget is spent, or an input is no longer kept;
    'batch_full' if no further row may be open now.
    """
    batch = batches.find(name)
    if batch.file:
        raise ConfigError(f"the rows of batch {name!r} are in a file: use `submit batch retry {name}` there", code="batch_state")
    if batch.mode == "provider":
        raise ConfigError(f"batches of a provider answer batch {name!r}: give its rows again where it was begun", code="batch_state")
    _check_feeder(batches, name)
    goes_on = batch.state == "running" and batch.round > 0
    rows = [*(batches.store.undelivered if goes_on else batches.store.failed)(name, 0, batch.submitted)]
    before, waiting = batch.model_copy(update={"round": batch.round - goes_on}), 0
    if goes_on:  # those with a run in this round wait to be delivered
        _, missing = outcomes.ended(client.ledger, [*rows_by_run(batch, rows)])
        waiting, rows = len(rows) - len(missing), [row for row in rows if run_id_of_row(batch, row) in missing]
    if goes_on and not rows:
        return batch
    room = _room(batches, batch, waiting, UNBOUNDED, "the retry") if rows else 0
    requests = RowRequests(client, batch.target, {})
    try:
        given = {row: requests.request(row, _input(client, run_id_of_row(before, row), batch.target)) for row in rows}
    except UnknownRunError:
        message = f"not every failed row of batch {name!r} keeps its input; give the rows again where it was begun"
        raise ConfigError(message, code="batch_state") from None
    batch = batch if goes_on else batches.retry(name)
    batches.submit(batch, requests, {row: given[row] for row in rows[:room]}, {**batch.labels, **labels})
    return batches.find(name)


def _check_feeder(batches: Batches, name: str) -> None:
    """Raise ConfigError ('batch_state') if a process feeds a batch: neither knew the open rows of the other, so no bound would hold."""
    if feeder := batches.store.feeder(name):
        raise ConfigError(f"batch {name!r} is fed by {feeder}; wait until that ends, or stop it", code="batch_state")


def _room(batches: Batches, batch: BatchInfo, waiting: int, most: int, rest: str) -> int:
    """Return how many rows may be submitted beside those that wait to be delivered, if so many may be open. Raises ConfigError if none."""
    check_prices(batch, batch.unpriced)
    room = min(most, affordable_rows(batch, batch.usage.cost_usd, batch.priced)) - waiting
    if room > 0:
        return room
    if waiting:
        message = f"{waiting} rows wait to be delivered: read and acknowledge results, then go on with {rest}"
        raise ConfigError(message, code="batch_full")
    if batch.state == "running":
        batches.change(batch.name, "spend")
    raise ConfigError(f"the budget of batch {batch.name!r} is spent; begin it again with a higher budget_usd", code="batch_state")


def _input(client: Client, run_id: str, target: BatchTarget) -> Row:
    """Return the input of a row, from the request of its run."""
    _, text, _, _ = client.ledger.runs.request_of(run_id)
    if target.kind in ("agent", "team"):
        return stored(TurnRequest, text).text
    request = stored(ChainRequest, text)
    return request.nodes[0].input if target.kind == "workflow" else request.initial_input
