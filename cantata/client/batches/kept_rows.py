"""Retry of a batch's failed rows with the inputs that their runs keep, for batches whose rows come over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from cantata.client.batches.batches import Batches, Row, RowRequests, affordable_rows, run_id_of_row
from cantata.client.client import Client
from cantata.errors import ConfigError, UnknownRunError
from cantata.models.wire import ChainRequest, TurnRequest
from cantata.state.batches.batch_store import BatchInfo, BatchTarget


def retry(client: Client, batches: Batches, name: str, labels: Mapping[str, str]) -> BatchInfo:
    """Retry the failed rows of a batch that is done; a repetition goes on where a quota stopped the last one.

    Raises ConfigError ('batch_state') for a batch whose rows are in a file, if its budget is spent, or an input is no longer kept.
    """
    batch = batches.find(name)
    if batch.file:
        raise ConfigError(f"the rows of batch {name!r} are in a file: use `submit batch retry {name}` there", code="batch_state")
    if batch.mode == "provider":
        raise ConfigError(f"batches of a provider answer batch {name!r}: give its rows again where it was begun", code="batch_state")
    goes_on = batch.state == "running" and batch.round > 0
    rows = [*(batches.store.undelivered if goes_on else batches.store.failed)(name, 0, batch.submitted)]
    before = batch.model_copy(update={"round": batch.round - goes_on})
    requests = RowRequests(client, batch.target, {})
    try:
        given = {row: requests.request(row, _input(client, run_id_of_row(before, row), batch.target)) for row in rows}
    except UnknownRunError:
        message = f"not every failed row of batch {name!r} keeps its input; give the rows again where it was begun"
        raise ConfigError(message, code="batch_state") from None
    if affordable_rows(batch, batch.usage.cost_usd or 0.0, batch.submitted if goes_on else batch.delivered) < len(rows):
        message = f"the budget of batch {name!r} does not pay {len(rows)} rows; begin it again with a higher one"
        raise ConfigError(message, code="batch_state")
    batch = batch if goes_on else batches.retry(name)
    batches.submit(batch, requests, given, {**batch.labels, **labels})
    return batches.find(name)


def _input(client: Client, run_id: str, target: BatchTarget) -> Row:
    """Return the input of a row, from the request of its run."""
    _, text, _, _ = client.ledger.runs.request_of(run_id)
    if target.kind in ("agent", "team"):
        return TurnRequest.model_validate_json(text).text
    request = ChainRequest.model_validate_json(text)
    return request.nodes[0].input if target.kind == "workflow" else request.initial_input
