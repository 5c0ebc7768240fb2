"""Runs as Redis tells them, for tests of what is drawn of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cantata.client.graphs.graph_view import RunGraph
from cantata.client.graphs.map_folding import fold
from cantata.flows.wire import RunStatus
from cantata.ledger.records import StepSummary
from cantata.ledger.runs.run_snapshot import Parts, Snapshot
from cantata.ledger.runs.summaries import RunSummary
from cantata.ledger.runs.timeline import Moments
from cantata.values import JsonValue

Facts = Mapping[str, Mapping[str, Any]] | None

AT = 1000.0  # when the run was accepted, in seconds


def snapshot(
    words: Mapping[str, str],
    *,
    names: Mapping[str, str] | None = None,
    status: RunStatus = "running",
    closed_at: float | None = None,
    attempts: Mapping[str, int] | None = None,
) -> Snapshot:
    """A run whose steps stand so; one that runs, is done or failed began once, if `attempts` says nothing else."""
    usual = {step_id: int(word in ("running", "done", "failed")) for step_id, word in words.items()} | dict(
        attempts or {}
    )
    steps = {step_id: StepSummary(step_id, word, usual[step_id], 0, 0, "-") for step_id, word in words.items()}
    run = RunSummary(run_id="run", kind="chain", status=status, created_at=AT, closed_at=closed_at)
    return Snapshot(run=run, request="{}", is_cut=False, offset=1, steps=steps, names=names or {}, terminals=())


def run_graph(
    run: Snapshot,
    *,
    edges: Mapping[str, list[tuple[str, str, bool]]] | None = None,
    infos: Facts = None,
    expansions: Facts = None,
    at: Mapping[str, Moments] | None = None,
    specs: Facts = None,
    opened: Iterable[str] = (),
) -> RunGraph:
    """What is drawn of it."""
    known: dict[str, Mapping[str, JsonValue]] = {step_id: {"kind": "tool.call"} for step_id in run.steps}
    folded = fold(run, set(opened))
    parts = Parts({**known, **(specs or {})}, edges or {}, infos or {}, expansions or {})
    return RunGraph(run, folded, parts, at or {}, dict.fromkeys(folded.shown).keys())


def ran(first: int, ended: int | None = None, started: int | None = None) -> Moments:
    """When a step began and ended: ms after its run was accepted."""
    base = round(AT * 1000)
    return Moments(
        base + first, base + (first if started is None else started), None if ended is None else base + ended, "worker"
    )
