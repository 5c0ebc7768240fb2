"""Beginnings of outputs, for pages: a run may have a thousand outputs of a megabyte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from cantata.models.values import JsonValue
from cantata.state.ledger.ledger import Ledger
from cantata.state.redis.keys import shard_key, shard_of
from cantata.state.redis.lua_scripts import SCRIPTS
from cantata.state.runs.summaries import unescaped

READ_BYTES = 80_000  # of one output: at least 20,000 characters
AT_ONCE = 1  # output in one round trip: one of a megabyte takes Redis 5 ms


@dataclass(frozen=True, slots=True)
class Beginning:
    """An output, or its beginning."""

    value: JsonValue
    is_cut: bool = False
    """If so, the value is a text: the beginning of a text, or of the JSON of anything else."""


def beginnings(ledger: Ledger, run_id: str, step_ids: Sequence[str]) -> list[Beginning]:
    """Return the beginnings of the outputs of steps, in order; null where there is none."""
    key = shard_key(ledger.redis, shard_of(run_id))
    calls = [(key, (run_id, str(READ_BYTES), step_id)) for step_id in step_ids]
    replies = ledger.with_retries(lambda: SCRIPTS.call_each(ledger.redis, "runs/beginning", calls, at_once=AT_ONCE))
    return [_beginning(text, int(size)) for text, size in replies]


def _beginning(text: str, size: int) -> Beginning:
    if size <= READ_BYTES:
        return Beginning(json.loads(text) if text else None)
    return Beginning(unescaped(text[1:]) if text.startswith('"') else text, is_cut=True)
