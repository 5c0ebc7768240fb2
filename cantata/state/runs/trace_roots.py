"""Gives the trace of a run its root when the run is over: by whoever sees that first, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from cantata.errors import CantataError
from cantata.state.ledger.ledger import Ledger
from cantata.state.redis.connection import RedisFailure

if TYPE_CHECKING:
    from cantata.observability.traces.spans import Spans

FIELDS = ("kind", "status", "created_at", "closed_at", "error", "session", "tenant", "input_tokens", "output_tokens", "cost_usd", "count")
"""Of a run, in the order of `lua/claim_trace.lua`."""

log = structlog.get_logger(__name__)


def end(spans: Spans | None, ledger: Ledger, run_id: str) -> None:
    """Give the trace of a run its root, if traces are made here, the run is over, and nobody has done so."""
    if spans is None:
        return
    try:
        known = ledger.runs.claim_trace(run_id)
    except (CantataError, RedisFailure) as error:
        log.warning("trace_root_failed", run=run_id, error=str(error))
        return
    if known:
        spans.run(run_id, dict(zip(FIELDS, known, strict=True)))
