"""A builder's plan, and the progress of its chains: as stored in Redis, or as the ledger has it for an open run.

The outcome of a chain is stored once, so that it outlives the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from cantata.client.client import Client
from cantata.errors import UnknownRunError
from cantata.features.sessions.builders import Builder, Fields, fault_of
from cantata.flows.wire import RUN_OVER
from cantata.ledger.records import RunRecord, StepRecord
from cantata.values import ErrorInfo, JsonValue, Value
from cantata_frontends.chainbuilder.plan import BuilderPlan

ENDED_FROM_OUTSIDE = frozenset({"cancelled", "timed_out"})
"""Statuses of runs that ended by cancellation or by their time limit, with chains in any state."""
Status = Literal["created", "running", "completed", "failed"]


class ChainProgress(Value):
    """The stored progress of a chain; the ledger has newer progress while its run is open."""

    status: Status = "created"
    run_id: str = Field(default="", description="the run it was last executed in")
    output: JsonValue = None
    error: ErrorInfo | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the ledger may have newer progress."""
        return bool(self.run_id) and self.status in ("created", "running")


def progress_in(run: RunRecord, chain_id: str) -> ChainProgress:
    """Return the progress of a chain in its run."""
    step = run.answering(chain_id)
    is_over = run.status in RUN_OVER
    if step is None:  # not planned yet, or never
        return ChainProgress(status="failed" if is_over else "running", run_id=run.run_id, error=run.error)
    if step.state == "done":
        return ChainProgress(status="completed", run_id=run.run_id, output=step.output)
    if step.state == "failed":
        return ChainProgress(status="failed", run_id=run.run_id, error=step.error or run.error)
    if not _has_begun(step, chain_id) and run.status not in ENDED_FROM_OUTSIDE:
        return ChainProgress(run_id="" if is_over else run.run_id)
    return ChainProgress(status="failed" if is_over else "running", run_id=run.run_id, error=run.error)


def _has_begun(step: StepRecord, chain_id: str) -> bool:
    return step.attempt > 0 or step.state in ("sent", "running") or step.step_id != chain_id  # it has expanded


PLAN_FIELD = "plan"


class BuilderState:
    """The stored state of one builder."""

    def __init__(self, client: Client, name: str, tenant: str) -> None:
        if fault := fault_of(name):
            raise ValueError(fault)
        self._name = name
        self._ledger = client.ledger
        self._stored = Builder(client.ledger, name, tenant, client.definitions.limits.quota_of(tenant))

    def create(self, plan: BuilderPlan, *, exist_ok: bool) -> None:
        """Store a new builder. Raises ValueError if there is one of its name; with `exist_ok` only if that has other settings."""

        def change(found: Fields) -> Mapping[str, str]:
            if found[PLAN_FIELD] is None:
                return {PLAN_FIELD: _text(plan)}
            if not exist_ok:
                raise ValueError(
                    f"a builder {self._name!r} exists already; continue with it by exist_ok=True, or by ChainBuilder.open"
                )
            if self._plan(found[PLAN_FIELD]).base != plan.base:
                raise ValueError(
                    f"builder {self._name!r} exists with another model, instruction, technique or step_timeout_s; "
                    "give another name, or continue with it as it is by ChainBuilder.open"
                )
            return {}

        self._stored.update([PLAN_FIELD], change)

    def plan(self) -> BuilderPlan:
        """Return the current plan. Raises ValueError if there is no such builder."""
        return self._plan(self._stored.read([PLAN_FIELD])[PLAN_FIELD])

    def change(self, change: Callable[[BuilderPlan], BuilderPlan], *, restarted: str | None = None) -> None:
        """Change the plan, and forget the progress of the chain `restarted`; if `change` raises, both stay as they are."""
        forgotten = {} if restarted is None else {_progress_field(restarted): _text(ChainProgress())}
        self._stored.update(
            [PLAN_FIELD], lambda found: {PLAN_FIELD: _text(change(self._plan(found[PLAN_FIELD]))), **forgotten}
        )

    def progress(self, chain_ids: Sequence[str]) -> dict[str, ChainProgress]:
        """Return the progress of chains."""
        if not chain_ids:
            return {}
        texts = self._stored.read([_progress_field(chain_id) for chain_id in chain_ids])
        found = {chain_id: _progress(texts[_progress_field(chain_id)]) for chain_id in chain_ids}
        by_run: dict[str, list[str]] = {}
        for chain_id, progress in found.items():
            if progress.is_open:
                by_run.setdefault(progress.run_id, []).append(chain_id)
        for run_id, members in by_run.items():
            try:
                found |= self.record_finished(self._ledger.reader.read(run_id), members)
            except UnknownRunError:  # it expired, or its submitter died before it was accepted
                found |= dict.fromkeys(members, ChainProgress())
        return found

    def record_finished(self, run: RunRecord, chain_ids: Iterable[str]) -> dict[str, ChainProgress]:
        """Return the progress of chains in a run; store the outcomes of those that are not in a newer run."""
        found = {chain_id: progress_in(run, chain_id) for chain_id in chain_ids}
        over = {chain_id: progress for chain_id, progress in found.items() if not progress.is_open}

        def change(stored: Fields) -> Mapping[str, str]:
            current = {
                chain_id: progress
                for chain_id, progress in over.items()
                if _progress(stored[_progress_field(chain_id)]).run_id == run.run_id
            }
            return {_progress_field(chain_id): _text(progress) for chain_id, progress in current.items()}

        if over:
            self._stored.update([_progress_field(chain_id) for chain_id in over], change, of_run=True)
        return found

    def record_started(self, chain_ids: Sequence[str], run_id: str) -> dict[str, ChainProgress]:
        """Store that chains are executed in a run; return their progress before."""
        before: dict[str, ChainProgress] = {}

        def change(stored: Fields) -> Mapping[str, str]:
            before.update({chain_id: _progress(stored[_progress_field(chain_id)]) for chain_id in chain_ids})
            return {
                _progress_field(chain_id): _text(ChainProgress(status="running", run_id=run_id))
                for chain_id in chain_ids
            }

        self._stored.update([_progress_field(chain_id) for chain_id in chain_ids], change)
        return before

    def record_outputs(self, outputs: Mapping[str, JsonValue]) -> None:
        """Store outputs of a `parallel_executor`, except those that a run of the builder has already recorded."""
        found = self.progress(list(outputs))
        made = {chain_id: ChainProgress(status="completed", output=output) for chain_id, output in outputs.items()}
        self.write(
            {
                chain_id: each
                for chain_id, each in made.items()
                if (found[chain_id].status, found[chain_id].output) != ("completed", each.output)
            }
        )

    def write(self, progress: Mapping[str, ChainProgress]) -> None:
        """Store the progress of chains."""
        self._stored.update(
            [], lambda _: {_progress_field(chain_id): _text(each) for chain_id, each in progress.items()}
        )

    def _plan(self, text: str | None) -> BuilderPlan:
        if text is None:
            raise ValueError(f"there is no builder {self._name!r}; it may have expired")
        return BuilderPlan.model_validate_json(text)


def _progress_field(chain_id: str) -> str:
    return f"at:{chain_id}"


def _text(value: BuilderPlan | ChainProgress) -> str:
    return value.model_dump_json(exclude_defaults=True, by_alias=True)


def _progress(text: str | None) -> ChainProgress:
    return ChainProgress() if text is None else ChainProgress.model_validate_json(text)
