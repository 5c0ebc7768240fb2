"""Outcomes of many runs, read in one round trip: state, output, error and usage, without their steps."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from cantata.flows.wire import RunState, RunStatus
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import shard_of
from cantata.ledger.redis.pieces import ask_shards
from cantata.ledger.redis.records import check_script, readable, remedy_for
from cantata.ledger.runs.summaries import state_of
from cantata.values import ErrorInfo, JsonValue, Usage

ENDED_AT_ONCE = 500  # of a shard
RUNS_AT_ONCE = 50  # of a shard, which one call reads
UNREADABLE_ROW = 2  # values in the row of a run that the script could not read


class EndedRow(NamedTuple):
    """The outcome of a run that is over."""

    state: RunState
    output: JsonValue
    error: ErrorInfo | None
    usage: Usage
    is_priced: bool = True
    """False if the price of a model call is not known, so that it cost more than `usage` says."""


def ended(ledger: Ledger, run_ids: Sequence[str]) -> tuple[Mapping[str, EndedRow], set[str]]:
    """Return the outcomes of those of these runs that are over, by id, and the runs that are not known."""
    by_shard = defaultdict(list)
    for run_id in run_ids:
        by_shard[shard_of(run_id)].append(run_id)
    calls = [
        (shard, tuple(ids[start : start + RUNS_AT_ONCE]))
        for shard, ids in by_shard.items()
        for start in range(0, len(ids), RUNS_AT_ONCE)
    ]
    replies = ledger.caller.call_all("runs/outcomes", calls)
    found = {
        run_id: row
        for (_, ids), rows in zip(calls, replies, strict=True)
        for run_id, row in zip(ids, rows, strict=True)
    }
    return {run_id: _outcome(run_id, row) for run_id, row in found.items() if len(row) > 1}, {
        run_id for run_id, row in found.items() if not row
    }


def newly_ended(ledger: Ledger, batch: str) -> list[str]:
    """Return the runs of a batch's rows that have ended since the last call, in any process; some may be missing after an outage."""
    found = ledger.with_retries(
        lambda: ask_shards(ledger.redis, lambda pipe, key: pipe.lpop(f"{key}:ended:{batch}", ENDED_AT_ONCE))
    )
    return [run_id for run_ids in found for run_id in run_ids or ()]


def _outcome(run_id: str, row: Sequence[str]) -> EndedRow:
    """Return the outcome of a run. One that cannot be read counts as failed, and what it cost is not known."""

    def failed(why: str) -> EndedRow:
        return EndedRow("failed", None, ErrorInfo(code="unreadable", message=why), Usage(), is_priced=False)

    def read() -> EndedRow:
        if len(row) == UNREADABLE_ROW:
            check_script(row[1])
        return _readable_outcome(row)

    return readable(read, failed, remedy=remedy_for(run_id))


def _readable_outcome(row: Sequence[str]) -> EndedRow:
    status, failures, error, tokens_in, tokens_out, cost, kind, unpriced, *terminals = row
    steps = [terminals[start : start + 4] for start in range(0, len(terminals), 4)]
    outputs = {name: json.loads(output) for name, state, output, _ in steps if state == "done"}
    output: JsonValue = None
    if kind == "turn" and steps:  # as runs.results has it
        name, _, _, info = steps[-1]
        output = outputs.get(name, json.loads(info).get("last_output"))
    elif status == "succeeded":
        output = next(iter(outputs.values())) if len(outputs) == 1 else (outputs or None)
    reason = json.loads(error or "{}").get("error")
    return EndedRow(
        state_of(cast(RunStatus, status), int(failures or 0)),
        output,
        ErrorInfo.model_validate(reason) if reason else None,
        Usage(
            input_tokens=int(tokens_in or 0), output_tokens=int(tokens_out or 0), cost_usd=float(cost) if cost else None
        ),
        not int(unpriced or 0),
    )
