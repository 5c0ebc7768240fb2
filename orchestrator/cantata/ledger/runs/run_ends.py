"""Ends of runs, recorded by the process that first sees one: the root span of the trace, and the duration in the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from cantata.errors import CantataError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import RedisFailure
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

UNNAMED = "unnamed"
"""Name of a run of a chain request: what runs are called freely would use up the names of the configuration."""

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
    return dict(zip(FIELDS, ledger.caller.call("runs/claim_end", run_id, TRACED, *FIELDS), strict=False))


def _measure(ledger: Ledger, run_id: str) -> None:
    reply = ledger.caller.call(
        "runs/claim_end", run_id, METERED, "kind", "name", "status", "tenant", "created_at", "closed_at"
    )
    if not reply:
        return
    kind, name, status, tenant, created_at, closed_at = reply
    if kind != "webhook":
        metrics.record_run_ended(name or UNNAMED, status, tenant or "", (int(closed_at) - int(created_at)) / 1000)
