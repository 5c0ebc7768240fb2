"""Encoding of graphs and steps for the ledger's scripts, and decoding of their replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from cantata.errors import StoredDataError
from cantata.flows.graph import STEP_OVER, Graph, Spec, Step
from cantata.flows.wire import RUN_OVER, RunStatus
from cantata.ledger.records import DueSchedule, ItemFault, Overdue, Ready, RunRecord, StepRecord, StepSummary, Swept
from cantata.ledger.redis.keys import webhook_runs_of
from cantata.values import ErrorInfo, JsonValue, Usage, stored

USUAL_SPEC_BYTES = (
    4096  # larger specs hold large inputs, and a long-lived worker would keep thousands of them in memory
)


Reply = TypeVar("Reply")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def spec_of(text: str) -> Spec:
    """Return a spec to be sent on or shown; fields of newer versions are ignored.

    Of one that cannot be read it has the fields that can: the worker that begins the step fails it, and whoever lists it goes on.
    """
    return _usual_spec(text) if len(text) <= USUAL_SPEC_BYTES else _any_spec(text)


def own_spec_of(text: str) -> Spec:
    """Return a spec to be executed here, of which every field must be known. Raises ValidationError, StoredDataError."""
    return _usual_own_spec(text) if len(text) <= USUAL_SPEC_BYTES else _own_spec(text)


def whole_spec_of(text: str) -> Spec:
    """Return a spec whose conditions count, such as those who may answer; fields of newer versions are ignored.

    Raises ValidationError or StoredDataError if a part of it cannot be read.
    """
    return stored(Spec, text, ignores_unknown=True)


def _any_spec(text: str) -> Spec:
    try:
        return whole_spec_of(text)
    except (ValidationError, StoredDataError):
        return _readable_part(text)


def _own_spec(text: str) -> Spec:
    return stored(Spec, text)


def _readable_part(text: str) -> Spec:
    """Return the plain fields of a spec that cannot be read as a whole; those of a plan if there are none."""
    try:
        known = json.loads(text)
        plain = {
            name: value
            for name, value in known.items()
            if name in Spec.model_fields and not isinstance(value, dict | list)
        }
        return Spec.model_validate(plain)
    except (ValueError, RecursionError, AttributeError):
        return Spec(kind="run.start")


_usual_spec = lru_cache(maxsize=4096)(_any_spec)
_usual_own_spec = lru_cache(maxsize=4096)(_own_spec)


def step_text(step: Step, *, given: bool = False) -> str:
    """Return a step as JSON text, without its id and given value, which the ledger keeps elsewhere."""
    own: dict[str, object] = {"has_given": True} if given or step.given is not None else {}
    if step.kind == "wait" and (shown := _question_of(step)):
        own["waiting"] = to_json(shown)
    return step.model_copy(update=own).model_dump_json(exclude_defaults=True, exclude={"id", "given"})


def _question_of(step: Step) -> dict[str, JsonValue]:
    """Return the detail of the event `waiting` of a wait."""
    options = step.params.get("wait")
    question = options.get("question") if isinstance(options, Mapping) else None
    return {
        **({"asks": step.params["asks"]} if "asks" in step.params else {}),
        **({"question": question} if question else {}),
    }


def to_json(value: JsonValue) -> str:
    """Return compact JSON text. Raises TypeError or ValueError for a value that is not JSON."""
    return _ENCODER.encode(value)


def storable(text: str) -> str:
    """Return the text with unpaired surrogates replaced: one from a model or a tool must not cost a step its outcome."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def fragment_of(graph: Graph) -> dict[str, JsonValue]:
    """Return a graph as `expand.lua` takes it."""
    like = graph.items.like if graph.items else None
    rows = [
        [s.id, step_text(s, given=s.id == like), *([] if s.given is None else [to_json(s.given)])] for s in graph.steps
    ]
    fragment: dict[str, JsonValue] = {
        "steps": cast(JsonValue, rows),
        "edges": [[e.source, e.target, e.label, e.wakes, *([True] if e.alone else [])] for e in graph.edges],
        "names": dict(graph.names),
        "scoped": graph.scoped,
        "terminals": list(graph.terminals),
    }
    if graph.exit is not None:
        fragment["exit"] = graph.exit
    if graph.stops:
        fragment["stops"] = list(graph.stops)
    if graph.items is not None:
        items = graph.items
        fragment["items"] = {
            "like": items.like,
            "prefix": items.prefix,
            "window": items.window,
            "given": [to_json(v) for v in items.given],
        }
    return fragment


def states_in(status: str | None, states: Mapping[str, str]) -> dict[str, str]:
    """Return the packed states of steps in a run of this status: in an ended run, an open step counts as skipped."""
    return {step_id: _skip_if_open(packed) if status in RUN_OVER else packed for step_id, packed in states.items()}


STATUS_FIELDS = ("status", "cancelling", "waits", "time_left")
"""The fields of a run's hash from which its status follows."""


def shown_status(meta: Mapping[str, str | None]) -> RunStatus:
    """Return the status of a run, from STATUS_FIELDS: one that only waits for people is `waiting`."""
    if meta["status"] != "running":
        return cast(RunStatus, meta["status"])
    if meta.get("cancelling"):
        return "cancelling"
    return "waiting" if int(meta.get("waits") or 0) > 0 and meta.get("time_left") is not None else "running"


def _skip_if_open(packed: str) -> str:
    state, *counts, _owner = packed.split(" ", 7)
    return packed if state in STEP_OVER else " ".join(["skipped", *counts, "-"])


def usage_of(usage: Usage) -> dict[str, JsonValue]:
    """Return a usage as scripts add it to the run's: the cost as text, since Redis adds decimals exactly."""
    fields = usage.model_dump(exclude_defaults=True)
    return fields if usage.cost_usd is None else {**fields, "cost_usd": repr(usage.cost_usd)}


def ready_of(flat: Sequence[str], priority: int = 0) -> tuple[Ready, ...]:
    """Return the steps of a run with some priority to send, from `{id, spec, ...}`."""
    return tuple(Ready(flat[i], spec_of(flat[i + 1]), priority) for i in range(0, len(flat), 2))


def ready_of_runs(rows: Sequence[str], *, has_waited: bool = False) -> tuple[tuple[str, Ready], ...]:
    """Return the steps of several runs to send, from `{run, priority, id, spec, ...}`."""
    return tuple(
        (rows[i], Ready(rows[i + 2], spec_of(rows[i + 3]), int(rows[i + 1]), has_waited))
        for i in range(0, len(rows), 4)
    )


def swept_of(shard: int, found: Mapping[str, Any]) -> Swept:
    """Return the result of a sweep of a shard, from the reply of `sweep.lua`. Items that cannot be read are among its faults."""
    failed = found.get("faults", ())
    faults = [
        ItemFault(duty, item, why, shard, int(tries))
        for duty, item, why, tries in (failed[i : i + 4] for i in range(0, len(failed), 4))
    ]

    def read(
        part: str, size: int, duty: str, name: Callable[[Any], str], decode: Callable[[Any], Reply]
    ) -> list[Reply]:
        """Return what can be read of a flat list of rows of a size."""
        rows, readable = found.get(part, ()), list[Reply]()
        for row in (rows[i : i + size] for i in range(0, len(rows), size)):
            try:
                readable.append(decode(row))
            except Exception as error:  # noqa: BLE001  # whatever a decoder raises for this item, the others are readable
                faults.append(ItemFault(duty, name(row), error, shard))
        return readable

    def step_of(row: Sequence[str]) -> str:
        return f"{row[0]}|{row[2]}"

    sends = [
        *read("recovered", 4, "sends", step_of, lambda row: ready_of_runs(row, has_waited=True)[0]),
        *read("sends", 4, "sends", step_of, lambda row: ready_of_runs(row)[0]),
    ]
    overdue = read("overdue", 6, "lost", step_of, _overdue)
    schedules = read("schedules", 1, "schedules", lambda row: str(row[0][0]), lambda row: _due_schedule(shard, *row[0]))
    lists = {name: tuple(found.get(name, ())) for name in ("ended", "waiting", "left", "tasks", "revoked")}
    return Swept(
        sends=tuple(sends),
        overdue=tuple(overdue),
        lost=int(found.get("lost", 0)),
        fired=int(found.get("fired", 0)),
        fault=str(found.get("fault", "")),
        schedules=tuple(schedules),
        faults=tuple(faults),
        **lists,
    )


def _overdue(row: Sequence[str]) -> Overdue:
    run_id, priority, step_id, queue, sent_at_ms, is_first = row
    return Overdue(run_id, step_id, queue, int(priority), int(sent_at_ms) / 1000, bool(int(is_first)))


def _due_schedule(
    shard: int, scope: str, now_ms: int, fields: Sequence[str | None], pending: Sequence[str], open_run: str
) -> DueSchedule:
    spec, request, labels, quota, next_at, mark, skipped_ms, grace_ms = (each or "" for each in fields)
    skipped, grace = int(skipped_ms or 0), int(grace_ms or 0)
    return DueSchedule(
        shard,
        scope,
        now_ms + skipped,
        spec,
        request,
        labels,
        quota,
        next_at,
        mark,
        skipped,
        grace,
        tuple(pending),
        open_run,
    )


def _text_of(texts: Mapping[str, str], step_id: str) -> str:
    text = texts[step_id]
    return texts[text[1:]] if text.startswith("=") else text


def step_summary(step_id: str, packed: str) -> StepSummary:
    """Return the state of a step, from its packed form; `run.lua` describes the packing."""
    state, attempt, _pending, _taken, failures, crashes, _quorum, owner = packed.split(" ", 7)
    return StepSummary(step_id, state, int(attempt), int(failures), int(crashes), "-" if state in STEP_OVER else owner)


def step_record(
    step_id: str,
    packed: str,
    specs: Mapping[str, str],
    outs: Mapping[str, str],
    infos: Mapping[str, str],
    blobs: Mapping[str, str],
) -> StepRecord:
    """Return the record of a step, from its fields in the run's hashes."""
    its = step_summary(step_id, packed)
    out = outs.get(step_id, "null")
    output = json.loads(blobs[out[1:]] if out.startswith("@") else out)
    info = json.loads(infos.get(step_id, "{}"))
    spec = spec_of(_text_of(specs, step_id))
    return StepRecord(step_id, its.state, its.attempt, its.failures, its.crashes, its.owner, spec, output, info)


def run_record(
    run_id: str, meta: Mapping[str, str], steps: Mapping[str, StepRecord], names: Mapping[str, str], now_ms: int
) -> RunRecord:
    """Return the record of a run, from the fields of its own hash."""
    error = json.loads(meta.get("error") or "{}").get("error")
    return RunRecord(
        run_id=run_id,
        status=shown_status(meta),
        kind=meta["kind"],
        request=meta["request"],
        definitions=meta["definitions"],
        created_at_ms=int(meta["created_at"]),
        closed_at_ms=int(meta["closed_at"]) if "closed_at" in meta else None,
        now_ms=now_ms,
        error=ErrorInfo.model_validate(error) if error else None,
        usage=Usage(
            input_tokens=int(meta.get("input_tokens", 0)),
            output_tokens=int(meta.get("output_tokens", 0)),
            cost_usd=float(meta["cost_usd"]) if "cost_usd" in meta else None,
            model_calls=int(meta.get("model_calls", 0)),
            tool_calls=int(meta.get("tool_calls", 0)),
        ),
        count=int(meta["count"]),
        left=int(meta["left"]),
        failures=int(meta.get("failures", 0)),
        terminals=tuple(json.loads(meta.get("terminals", "[]"))),
        labels=json.loads(meta.get("labels", "{}")),
        names=names,
        steps=steps,
        code=tuple(meta.get("code", "").split()),
        webhook_runs=webhook_runs_of(run_id, int(meta.get("deliveries", 0))),
        retried_as=meta.get("retried_as", ""),
    )
