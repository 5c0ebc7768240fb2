"""Lists the newest runs of one tenant, without what they were asked and did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from pydantic import Field
from redis import Redis

from orchestrator.models.values import JsonValue, Usage, Value
from orchestrator.models.wire import RunStatus
from orchestrator.state.ledger import SHARDS, run_key, shard_key

FIRST_LOOK = 200  # runs of all tenants that are looked through first; then twice as many, and so on
LAST_LOOK = 25_600  # past so many runs of others, older ones of the tenant are not listed
FIELDS = (
    "kind", "status", "created_at", "closed_at", "error", "input_tokens", "output_tokens", "cost_usd", "model_calls", "tool_calls",
)  # fmt: skip


class RunSummary(Value):
    """A run as lists show it."""

    run_id: str = Field(description="the run")
    kind: str = Field(description="turn or chain")
    status: RunStatus = Field(description="how it stands")
    created_at: float = Field(description="when it was accepted, Redis's clock, seconds since 1970")
    closed_at: float | None = Field(default=None, description="when it ended")
    error: JsonValue = Field(default=None, description="why it failed: {code, message, step}")
    usage: Usage = Field(default_factory=Usage, description="what it consumed")


def newest(redis: Redis, tenant: str, *, most: int) -> list[RunSummary]:
    """The newest runs of a tenant, newest first."""
    look = max(FIRST_LOOK, most)
    while True:
        run_ids = _newest_ids(redis, look)
        with redis.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hget(run_key(run_id), "tenant")
            owners = cast("list[str | None]", pipe.execute())
        own = [run_id for run_id, owner in zip(run_ids, owners, strict=True) if owner == tenant][:most]
        if len(own) == most or len(run_ids) < look or look >= LAST_LOOK:
            return _summaries(redis, own)
        look *= 2


def _newest_ids(redis: Redis, most: int) -> list[str]:
    with redis.pipeline(transaction=False) as pipe:
        for shard in range(SHARDS):
            pipe.zrevrange(f"{shard_key(shard)}:runs", 0, most - 1, withscores=True)
        shards = cast("list[list[tuple[str, float]]]", pipe.execute())
    pairs = sorted((pair for shard in shards for pair in shard), key=lambda pair: (-pair[1], pair[0]))
    return [run_id for run_id, _ in pairs[:most]]


def _summaries(redis: Redis, run_ids: Sequence[str]) -> list[RunSummary]:
    with redis.pipeline(transaction=False) as pipe:
        for run_id in run_ids:
            pipe.hmget(run_key(run_id), list(FIELDS))
        rows = cast("list[list[str | None]]", pipe.execute())
    known = [(run_id, dict(zip(FIELDS, row, strict=True))) for run_id, row in zip(run_ids, rows, strict=True)]
    return [_summary(run_id, row) for run_id, row in known if row["status"]]


def _summary(run_id: str, row: dict[str, str | None]) -> RunSummary:
    return RunSummary(
        run_id=run_id,
        kind=row["kind"] or "",
        status=cast(RunStatus, row["status"]),
        created_at=int(row["created_at"] or 0) / 1000,
        closed_at=int(row["closed_at"]) / 1000 if row["closed_at"] else None,
        error=json.loads(row["error"] or "{}").get("error"),
        usage=Usage(
            input_tokens=int(row["input_tokens"] or 0),
            output_tokens=int(row["output_tokens"] or 0),
            cost_usd=float(row["cost_usd"]) if row["cost_usd"] else None,
            model_calls=int(row["model_calls"] or 0),
            tool_calls=int(row["tool_calls"] or 0),
        ),
    )
