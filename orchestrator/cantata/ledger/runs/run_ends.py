"""Ends of runs, recorded by the process that first sees one: the root span of the trace, and the duration in the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from cantata.errors import CantataError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import RedisFailure
from cantata.ledger.runs.summaries import REQUEST_BYTES, target_of
from cantata.operation import metrics

if TYPE_CHECKING:
    from cantata.operation.traces.spans import Spans

TRACED, METERED = "traced", "metered"  # fields of a run that mark what was recorded
FIELDS = (
    "kind",
    "status",
    "created_at",
    "closed_at",
    "error",
    "session",
    "tenant",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "count",
)

DEFAULT, UNNAMED = "default", "unnamed"
"""Names of a turn for the default receiver, and of a chain request without an id."""

log = structlog.get_logger(__name__)


def record(ledger: Ledger, run_id: str, spans: Spans | None) -> None:
    """Record the end of a run that is over, if this process exports traces or metrics and no process has recorded it."""
    try:
        if spans is not None and (fields := claim(ledger, run_id)):
            spans.run(run_id, fields)
        if metrics.records_runs():
            _measure(ledger, run_id)
    except (CantataError, RedisFailure) as error:
        log.warning("run_end_not_recorded", run=run_id, error=str(error))


def claim(ledger: Ledger, run_id: str) -> dict[str, str | None]:
    """Return the fields of the root of a run's trace once, when the run is over; else nothing."""
    return dict(zip(FIELDS, ledger.caller.call("runs/claim_end", run_id, TRACED, 0, *FIELDS)[2:], strict=False))


def _measure(ledger: Ledger, run_id: str) -> None:
    names = ("kind", "status", "tenant", "created_at", "closed_at")
    reply = ledger.caller.call("runs/claim_end", run_id, METERED, REQUEST_BYTES, *names)
    if not reply:
        return
    beginning, end, kind, status, tenant, created_at, closed_at = reply
    if kind != "webhook":
        name = target_of(kind, beginning + end) or (DEFAULT if kind == "turn" else UNNAMED)
        metrics.record_run_ended(name, status, tenant or "", (int(closed_at) - int(created_at)) / 1000)
