"""A run as one JSON document: its request and definitions, and each step with its model and tool calls, as far as they are kept."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from cantata import __version__
from cantata.errors import CantataError
from cantata.features.sessions.sessions import Sessions
from cantata.flows.definitions import Limits
from cantata.flows.events import ModelFallback, RunEvent, StepExpanded
from cantata.flows.expressions import expressions, step_values
from cantata.flows.expressions.evaluation import EvaluationBudget
from cantata.flows.graph import Spec
from cantata.flows.step_kinds import MODEL_ROLES, kind_named
from cantata.flows.wire import RUN_OVER, HistoryEntry
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunRecord, StepRecord
from cantata.ledger.runs.past_names import PastNames
from cantata.ledger.runs.results import chain_response, turn_result
from cantata.ledger.runs.summaries import shown_state
from cantata.operation.logs.secrets import redact, secrets_in
from cantata.values import JsonValue

FORMAT, VERSION = "cantata.run", 1
STEPS_AT_ONCE = 20  # of which outputs are in memory
OWN_FIELDS = ("ms", "by", "usage", "error", "prompt", "model", "finish", "request", "cached", "code")
"""Fields of a step's info that the document has elsewhere, or not."""

JsonObject = dict[str, Any]


def export(ledger: Ledger, record: RunRecord, events: Iterable[RunEvent]) -> Iterator[str]:
    """Yield a run as pieces of a JSON document: first its head, then a line for each step in the order in which they began.

    Values of secret environment variables, and texts that look like a key, are replaced by `***`.

    Args:
        ledger: Where the run is kept.
        record: The run, with the outputs of its terminals.
        events: All its events so far.
    """
    history = _History(events)
    names = PastNames(ledger, record.run_id, history.expanded)
    secrets = secrets_in(os.environ)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "cantata": __version__,
        "run": _run(record),
        **_context(ledger, record),
    }
    yield _text(head, secrets)[:-1] + ',\n"steps": ['
    late = len(history.began) + len(history.ended)
    order = sorted(
        record.steps, key=lambda step_id: (history.began.get(step_id, history.ended.get(step_id, late)), step_id)
    )
    for start in range(0, len(order), STEPS_AT_ONCE):
        ids = order[start : start + STEPS_AT_ONCE]
        records = ledger.reader.records(record.run_id, ids)
        steps = [_Step(records[step_id], history, names) for step_id in ids if step_id in records]
        sources = list({source for step in steps if step.kind.is_call for source in step.inputs.values()})
        outputs = dict(zip(sources, ledger.reader.outputs(record.run_id, sources), strict=True))
        for number, step in enumerate(steps, start):
            given = ledger.reader.given(record.run_id, step.step_id) if step.record.spec.has_given else None
            yield (",\n" if number else "\n") + _text(step.to_json(outputs, given), secrets)
    yield "\n]}\n"


def _run(record: RunRecord) -> JsonObject:
    output = chain_response(record).final_output if record.kind == "chain" else turn_result(record).output
    return {
        "id": record.run_id,
        "kind": record.kind,
        "status": record.status,
        "is_over": record.status in RUN_OVER,
        "created_at_ms": record.created_at_ms,
        "closed_at_ms": record.closed_at_ms,
        "labels": dict(record.labels),
        "code": [*record.code],
        "request": json.loads(record.request),
        "output": output,
        "error": record.error and record.error.model_dump(),
        "usage": record.usage.model_dump(),
    }


def _context(ledger: Ledger, record: RunRecord) -> JsonObject:
    """Return the definitions of a run, and the conversation before it."""
    try:
        definitions = json.loads(ledger.runs.definitions(record.run_id, record.definitions))
    except CantataError:  # they have expired
        definitions = None
    session = json.loads(record.request).get("session") if record.kind == "turn" else None
    entries = Sessions(ledger, record.labels.get("tenant", "")).history(session) if session else []
    until_s = (record.closed_at_ms or record.now_ms) / 1000
    before = [entry.model_dump() for entry in entries if _is_before(entry, record.run_id, until_s)]
    return {"definitions": definitions, "conversation": before}


def _is_before(entry: HistoryEntry, run_id: str, until_s: float) -> bool:
    return entry.run_id != run_id and entry.ts <= until_s


class _History:
    """The attempts of the steps of a run, by its events."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        self.began: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.started: dict[str, int] = {}
        """Step → the offset at which its last attempt started."""
        self.expanded: list[tuple[int, str]] = []
        self.attempts: dict[str, list[JsonObject]] = defaultdict(list)
        for event in events:
            if event.step is not None:
                self._add(event.step, event)

    def _add(self, step_id: str, event: RunEvent) -> None:
        attempts = self.attempts[step_id]
        if event.step_state == "running":
            self.began.setdefault(step_id, event.seq)
            self.started[step_id] = event.seq
            attempts.append({"attempt": event.attempt, "worker": event.worker, "started_at_ms": event.at_ms})
        elif isinstance(event, ModelFallback) and attempts:
            attempts[-1].setdefault("fallbacks", []).append({"model": event.model, "error": event.message})
        elif event.ends_attempt and attempts and "end" not in attempts[-1]:
            error = event.failure
            attempts[-1] |= {
                "ended_at_ms": event.at_ms,
                "end": event.type,
                **({"error": error.model_dump()} if error else {}),
            }
        if event.ends_step or isinstance(event, StepExpanded):
            self.ended[step_id] = event.seq
        if isinstance(event, StepExpanded):
            self.expanded.append((event.seq, step_id))


class _Step:
    """A step of the document."""

    def __init__(self, record: StepRecord, history: _History, names: PastNames) -> None:
        self.record, self.step_id = record, record.step_id
        self.kind = kind_named(record.spec.kind)
        self._history, self._names = history, names
        began = history.started.get(record.step_id, 0)
        self.inputs = {name: names.source_of(reference, began) for name, reference in record.spec.reads.items()}

    def to_json(self, outputs: Mapping[str, str | None], given: JsonValue) -> JsonObject:
        """Return the step; `outputs` has the outputs of the steps that it reads, as JSON."""
        record, info, step_id = self.record, self.record.info, self.step_id
        spec = record.spec.model_dump(mode="json", exclude_defaults=True)
        added = self._names.added_by(step_id)
        step: JsonObject = {
            "step": step_id, "kind": record.spec.kind, "name": record.spec.work_name, "state": shown_state(record.state, info),
            "spec": sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12], "inputs": self.inputs, "output": record.output,
            "error": info.get("error"), "attempts": self._history.attempts.get(step_id, []), "ended": self._history.ended.get(step_id),
            "ms": info.get("ms"), "usage": info.get("usage"),
        }  # fmt: skip
        step |= {"given": given} if record.spec.has_given else {}
        step |= {"expanded": added} if added else {}
        if detail := {name: value for name, value in info.items() if name not in OWN_FIELDS}:
            step["detail"] = detail
        if self.kind.is_call and record.attempt:
            inputs = {name: json.loads(outputs.get(source) or "null") for name, source in self.inputs.items()}
            step["tool_call"] = {"tool": tool_of(record.spec), "arguments": _arguments(record, inputs, given)}
        if self.kind.role in MODEL_ROLES and "model" in info:
            step["model_call"] = self._model_call()
        return step

    def _model_call(self) -> JsonObject:
        """Return the model call of a step: the reply is the output, or in the round that it is, if another round follows."""
        info = self.record.info
        is_round = self.kind.role == "turn" and (self.kind.ends_with_round or bool(self._names.added_by(self.step_id)))
        found = cast("JsonObject", self.record.output) if is_round else {"reply": self.record.output}
        return {
            "model": info["model"],
            "finish": info.get("finish"),
            "request": info.get("request"),
            "cached": bool(info.get("cached")),
            "messages": info.get("prompt"),
            "reply": found.get("reply", ""),
            "tool_calls": found.get("calls", []),
        }


def tool_of(spec: Spec) -> str:
    """Return the name of a tool or command that a step calls; with its method, of a server's tool."""
    return ".".join(
        str(spec.params[part])
        for part in ("command", "tool", "method", "function", "workflow")
        if spec.params.get(part)
    )


def positional(spec: Spec) -> JsonObject:
    """Return the arguments that a workflow in Python calls a function with; none of other steps."""
    return {name: spec.params[name] for name in ("args", "kwargs") if name in spec.params}


def _arguments(record: StepRecord, inputs: Mapping[str, JsonValue], given: JsonValue) -> JsonValue:
    """Return the arguments of a tool call; null if its expressions failed."""
    root = step_values.expression_root(record.step_id, record.spec.window, given, inputs)
    limits = Limits()
    try:
        budget = EvaluationBudget(limits.expression_nodes, limits.expression_bytes)
        found = step_values.node_input(record.spec.params, root, step_values.node_names(inputs), budget)
        return found | positional(record.spec)
    except (expressions.ExpressionError, expressions.ExpressionLimitError):
        return None


def _text(value: JsonObject, secrets: Sequence[str]) -> str:
    return json.dumps(redacted(value, secrets), ensure_ascii=False)


def redacted(value: Any, secrets: Sequence[str]) -> Any:
    """Return a JSON value in which secrets in texts are replaced by `***`."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {name: redacted(each, secrets) for name, each in value.items()}
    return [redacted(each, secrets) for each in value] if isinstance(value, list) else value
