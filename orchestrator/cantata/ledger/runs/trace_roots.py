"""Root spans of runs' traces, written once by the process that first sees the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from cantata.errors import CantataError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import RedisFailure

if TYPE_CHECKING:
    from cantata.operation.traces.spans import Spans

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

log = structlog.get_logger(__name__)


def end(spans: Spans | None, ledger: Ledger, run_id: str) -> None:
    """Write the root span of a run, if this process exports traces, the run is over, and no process has written it."""
    if spans is None:
        return
    try:
        fields = claim(ledger, run_id)
    except (CantataError, RedisFailure) as error:
        log.warning("trace_root_failed", run=run_id, error=str(error))
        return
    if fields:
        spans.run(run_id, fields)


def claim(ledger: Ledger, run_id: str) -> dict[str, str | None]:
    """Return the fields of the root of a run's trace once, when the run is over; else nothing."""
    return dict(zip(FIELDS, ledger.caller.call("runs/claim_trace", run_id, *FIELDS), strict=False))
