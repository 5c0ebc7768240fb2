"""Data of the run pages, for the gateway and Flower. Every call blocks for some milliseconds."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from cantata.client.graphs import transcripts
from cantata.client.graphs.graph_view import RunGraph
from cantata.client.graphs.map_folding import fold
from cantata.client.graphs.page_views import (
    CLOSED,
    AttemptView,
    GraphView,
    MessageView,
    RunComparison,
    RunDetail,
    StepComparison,
    StepDetail,
)
from cantata.client.graphs.transcripts import RecordedStep
from cantata.client.graphs.truncate import Truncation
from cantata.client.tenant_client import TenantClient
from cantata.engine.engine import Engine
from cantata.engine.fleet import code_versions, holds
from cantata.features.forks.fork_requests import FORKED_FROM
from cantata.flows.events import LeaseLost, OutcomeUncertain, RunEvent, types_where
from cantata.flows.graph import RAW, START
from cantata.flows.step_kinds import kind_named
from cantata.flows.wire import RUN_OVER
from cantata.ledger.records import StepRecord
from cantata.ledger.runs import timeline
from cantata.ledger.runs.log_store import Logs
from cantata.ledger.runs.run_snapshot import Snapshot
from cantata.ledger.runs.timeline import Moments
from cantata.operation.traces import conventions
from cantata.values import JsonValue

LEFT_NO_SPAN = types_where(lambda event: event in (LeaseLost, OutcomeUncertain))
"""Types of the ends of attempts whose workers died."""
MAX_STEPS = 2000
"""Steps of a graph: if there are more, those that started last."""

MAX_VALUES = 100
"""Inputs of a step, answers of a run, and outputs that a comparison reads."""
MAX_LINES = 200
"""Log lines of a step."""
SHOWN_APART = frozenset({"error", "usage", "model", transcripts.PROMPT})
"""Recorded fields of a step that a view has elsewhere than in `info`."""


class RunPages:
    """Views of runs.

    Every method takes the tenant whose runs are visible ("" for runs without one); None for all. Each raises UnknownRunError for a run
    that does not exist or is not visible, and ConfigError for an invalid request.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._ledger = engine, engine.ledger
        self._timeline = timeline.Timeline(engine.ledger)

    def graph(self, tenant: str | None, run_id: str, *, opened: Sequence[str] = ()) -> GraphView:
        """Return the current graph of a run, with the first items of open maps."""
        TenantClient(self._engine, tenant).find(run_id)
        snapshot = self._ledger.reader.snapshot(run_id)
        folded = fold(snapshot, set(opened))
        moments = self._timeline.moments(run_id, snapshot.offset, folded=folded.limits)
        shown = _newest(folded.shown, moments)
        run_graph = RunGraph(
            snapshot, folded, self._ledger.reader.parts(run_id, shown), moments, dict.fromkeys(shown).keys()
        )
        steps = run_graph.steps()
        return GraphView(
            run=self._detail(snapshot),
            offset=snapshot.offset,
            more=len(shown) < len(folded.shown),
            steps=steps,
            edges=run_graph.edges,
            maps=run_graph.maps(),
            paused=self._paused({step.queue for step in steps if step.state == "sent"}),
        )

    def _paused(self, queues: Collection[str]) -> dict[str, str]:
        """Return those of the queues that are paused, with since when and by whom."""
        paused = holds.paused(self._ledger.redis) if queues else {}
        return {queue: pause.describe() for queue, pause in paused.items() if queue in queues}

    def step(self, tenant: str | None, run_id: str, step_id: str) -> StepDetail:
        """Return the details of one step. Raises UnknownRunError for a step that does not exist."""
        runs = TenantClient(self._engine, tenant)
        runs.find(run_id)
        snapshot = self._ledger.reader.snapshot(run_id)
        record = self._ledger.reader.records(run_id, [step_id]).get(step_id) if step_id in snapshot.steps else None
        if record is None:
            raise runs.unknown_step(run_id, step_id)
        events = timeline.step_events(self._ledger, run_id, step_id, snapshot.offset)
        parts = self._ledger.reader.parts(run_id, [step_id])
        run_graph = RunGraph(snapshot, fold(snapshot, ()), parts, {step_id: timeline.moments_in(events)}, {step_id})
        view, truncation = run_graph.step(step_id), Truncation()
        return StepDetail(
            step=view,
            params={name: truncation.value(value) for name, value in record.spec.params.items()},
            inputs=self._inputs(snapshot, record, truncation),
            given=truncation.value(self._ledger.reader.given(run_id, step_id)),
            output=truncation.value(record.output),
            info={name: truncation.value(value) for name, value in record.info.items() if name not in SHOWN_APART},
            attempts=[_with_span(each, run_id, step_id) for each in attempts_of(events, snapshot.run.closed_at)],
            transcript=list(self._transcript(snapshot, record)),
            logs=[line for line in Logs(self._ledger.redis, run_id).read() if line.step == step_id][-MAX_LINES:],
            usage=view.usage,
            model=view.model,
            cut=truncation.was_cut,
        )

    def compare(self, tenant: str | None, run_id: str, other: str) -> RunComparison:
        """Return two runs side by side, with the steps of both by id."""
        views = [self.graph(tenant, each) for each in (run_id, other)]
        left, right = ({step.id: step for step in view.steps if not step.internal} for view in views)
        done = [
            step_id for step_id in left if step_id in right and left[step_id].state == right[step_id].state == "done"
        ][:MAX_VALUES]
        outputs = zip(*(self._ledger.reader.beginnings(each, done) for each in (run_id, other)), strict=True)
        same = {
            step_id: one == two
            for step_id, (one, two) in zip(done, outputs, strict=True)
            if not (one.is_cut and one == two)
        }
        steps = [
            StepComparison(id=step_id, left=left.get(step_id), right=right.get(step_id), same_output=same.get(step_id))
            for step_id in [*left, *(step_id for step_id in right if step_id not in left)]
        ]
        return RunComparison(left=views[0].run, right=views[1].run, steps=steps)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _detail(self, snapshot: Snapshot) -> RunDetail:
        truncation = Truncation()
        request: JsonValue = snapshot.request
        if not snapshot.is_cut:
            request = json.loads(snapshot.request)
        answer = truncation.value(self._answer(snapshot, truncation))
        return RunDetail(
            **dict(snapshot.run),
            request=request,
            answer=answer,
            forked_from=snapshot.run.labels.get(FORKED_FROM),
            code_mixed=code_versions.describe_mixed(snapshot.run.code),
            cut=snapshot.is_cut or truncation.was_cut,
            trace_id=f"{conventions.trace_id(snapshot.run.run_id):032x}",
            span_id=f"{conventions.run_span(snapshot.run.run_id):016x}",
        )

    def _answer(self, snapshot: Snapshot, truncation: Truncation) -> JsonValue:
        """Return the output of a closed run: that of its last step, or of several by name."""
        if snapshot.run.status not in RUN_OVER:
            return None
        is_turn = snapshot.run.kind == "turn"
        ends = {name: snapshot.answering(name) for name in (snapshot.terminals[-1:] if is_turn else snapshot.terminals)}
        done = {
            name: end for name, end in ends.items() if end in snapshot.steps and snapshot.steps[end].state == "done"
        }
        outputs = self._outputs(snapshot, done, truncation)
        if is_turn and not outputs:
            infos = self._ledger.reader.infos(snapshot.run.run_id, list(ends.values())) if ends else []
            return infos[0].get("last_output") if infos else None
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs or None

    def _inputs(self, snapshot: Snapshot, record: StepRecord, truncation: Truncation) -> dict[str, JsonValue]:
        """Return the outputs that a step reads, by name."""
        if record.step_id == START:
            return {}
        refs = record.spec.reads.items()
        sources = {
            name: ref.removeprefix(RAW) if ref.startswith(RAW) else snapshot.answering(ref) for name, ref in refs
        }
        return self._outputs(snapshot, sources, truncation)

    def _outputs(self, snapshot: Snapshot, sources: Mapping[str, str], truncation: Truncation) -> dict[str, JsonValue]:
        """Return the outputs of steps by name: the beginning of each, and the first of many."""
        names = list(sources)[:MAX_VALUES]
        found = self._ledger.reader.beginnings(snapshot.run.run_id, [sources[name] for name in names])
        truncation.was_cut |= len(names) < len(sources) or any(each.is_cut for each in found)
        return {name: truncation.value(each.value) for name, each in zip(names, found, strict=True)}

    def _transcript(self, snapshot: Snapshot, record: StepRecord) -> Sequence[MessageView]:
        """Return the messages of a step that called a model."""
        if record.spec.role != "turn":
            own = RecordedStep(record.state, record.output, record.info)
            return transcripts.transcript([(record.step_id, own)], {}) if transcripts.PROMPT in record.info else []
        base, last = transcripts.conversation_of(record.step_id, record.spec.params)
        turns = transcripts.turns_of(base, snapshot.steps)
        rounds = set(turns if kind_named(record.spec.kind).ends_with_round else turns[:-1])
        recorded = self._recorded(snapshot, turns if last is None else turns[: last + 1], rounds)
        calls = [call for step_id, turn in recorded.items() for call in transcripts.calls_in(step_id, turn)]
        return transcripts.transcript(list(recorded.items()), self._recorded(snapshot, calls, ()))

    def _recorded(
        self, snapshot: Snapshot, step_ids: Sequence[str], rounds: Collection[str]
    ) -> dict[str, RecordedStep]:
        """Return the records of steps; the outputs of `rounds` that are done are rounds."""
        ids = [step_id for step_id in step_ids if step_id in snapshot.steps]
        records = self._ledger.reader.records(snapshot.run.run_id, ids) if ids else {}
        return {
            step_id: RecordedStep(
                record.state, record.output, record.info, record.state == "done" and step_id in rounds
            )
            for step_id, record in records.items()
        }


def attempts_of(events: Iterable[RunEvent], closed_at: float | None) -> list[AttemptView]:
    """Return the attempts of a step, oldest first; an attempt that was running when its run was closed ended then."""
    found: list[AttemptView] = []
    for event in events:
        if event.step_state == "running":
            found.append(
                AttemptView(attempt=event.attempt or len(found) + 1, started_at=event.at_ms / 1000, worker=event.worker)
            )
        elif event.ends_attempt and found and found[-1].end is None:
            found[-1] = found[-1].model_copy(
                update={"end": event.type, "ended_at": event.at_ms / 1000, "error": event.failure}
            )
    if found and found[-1].end is None and closed_at is not None:
        found[-1] = found[-1].model_copy(update={"end": CLOSED, "ended_at": closed_at})
    return found


def _with_span(attempt: AttemptView, run_id: str, step_id: str) -> AttemptView:
    """Return an attempt with the id of its span; one whose worker died has left none."""
    if attempt.end in LEFT_NO_SPAN:
        return attempt
    span_id = f"{conventions.step_span(run_id, step_id, attempt.attempt):016x}"
    return attempt.model_copy(update={"span_id": span_id})


def _newest(step_ids: Sequence[str], moments: Mapping[str, Moments]) -> Sequence[str]:
    """Return the steps to display: those that have not started yet, or started last."""
    if len(step_ids) <= MAX_STEPS:
        return step_ids

    def start_of(step_id: str) -> float:
        at = moments.get(step_id)
        return float("inf") if at is None or step_id == START else at.first_ms or at.ended_ms or float("inf")

    return sorted(step_ids, key=start_of)[-MAX_STEPS:]
