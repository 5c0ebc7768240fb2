"""Results, chain responses and chain events, made from the records of runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal, cast

from cantata.errors import ConfigError
from cantata.flows.chains.step_ids import NodeRef, ancestors, node_of
from cantata.flows.events import RunEvent
from cantata.flows.graph import START
from cantata.flows.wire import RUN_OVER, ChainError, ChainEvent, ChainRequest, ChainResponse, FaultInfo, RunResult
from cantata.ledger.records import RunRecord, StepRecord
from cantata.ledger.runs.summaries import state_of
from cantata.values import ErrorInfo, JsonValue, stored

ERROR_CODES = {"timed_out": "timeout", "cancelled": "cancelled"}
REFUSALS = frozenset({"bad_entry", "bad_request", "chain_cycle"})
PHASES: Mapping[str | None, Literal["start", "done", "error", "skip"]] = {
    "running": "start",
    "done": "done",
    "failed": "error",
    "skipped": "skip",
}
"""State of a step after an event → phase of its node."""


def turn_result(run: RunRecord) -> RunResult:
    """Return the result of a turn, or its result so far."""
    last = run.answering(run.terminals[-1]) if run.terminals else None
    info = last.info if last else {}
    return RunResult(
        run_id=run.run_id,
        status=run.status,
        state=state_of(run.status, run.failures),
        output=last.output if last and last.state == "done" else info.get("last_output"),
        error=run.error,
        usage=run.usage,
        agents=_agents(run),
        steps=cast("dict[str, JsonValue]", info.get("steps") or {}),
        history=cast("list[JsonValue]", info.get("history") or []),
        agentic=cast("dict[str, JsonValue] | None", info.get("agentic")),
        steps_run=_steps_run(run),
        duration_ms=duration_ms(run),
    )


def _agents(run: RunRecord) -> list[str]:
    """Return the agents that answered, without those whose answer was an instruction of another agent."""
    asked = {
        step_id: step
        for step_id, step in run.steps.items()
        if step.spec.role == "agent" or (step.spec.role == "turn" and step.spec.work.startswith("agents:"))
    }
    answered = [
        step
        for step_id, step in asked.items()
        if (answer := run.answering(step_id))
        and answer.state == "done"
        and not any(each in asked for each in ancestors(step_id))
    ]
    return list(dict.fromkeys(step.spec.work_name for step in answered))


def chain_response(run: RunRecord) -> ChainResponse:
    """Return the response of a chain, or its response so far; it has the outputs so far in any case."""
    request = stored(ChainRequest, run.request)
    bodies = bodies_of(request)
    answers = {node.node_id: run.answering(node.node_id) for node in request.nodes}
    outputs = {
        name: step.output for name, step in answers.items() if step is not None and step.state in ("done", "failed")
    }
    outputs |= {body: outputs[owner] for owner, body in bodies.items() if owner in outputs}
    ends = run.terminals if run.status == "succeeded" else ()  # in a failed run, the end of a branch is no answer
    finals = {name: outputs[name] for name in ends if (step := answers[name]) is not None and step.state == "done"}
    failed = _failed(run, request, bodies)
    ran = [node_of(step_id) for step_id, step in run.steps.items() if step_id != START and _was_executed(step)]
    return ChainResponse(
        req_id=request.id,
        chain_id=request.chain_id,
        session_id=request.session_id,
        correlation_id=request.correlation_id,
        run_id=run.run_id,
        status=run.status,
        state=state_of(run.status, run.failures),
        success=state_of(run.status, run.failures) == "succeeded",
        outputs=outputs,
        final_output=next(iter(finals.values())) if len(finals) == 1 else (dict(finals) or None),
        duration_ms=duration_ms(run),
        nodes_run=len({ref.node_id for ref in ran if not ref.inner and ref.index is None}),
        items_run=sum(1 for ref in ran if not ref.inner and ref.index is not None),
        failed=failed,
        usage=run.usage,
        error=_chain_error(run, bodies),
    )


def refused_chain(error: ConfigError) -> ChainResponse:
    """Return the response to a rejected chain request: nothing of it ran."""
    asked = error.asked if isinstance(error.asked, dict) else {}
    req_id, chain_id, session_id, correlation_id = (
        _utf8(asked.get(name)) for name in ("id", "chain_id", "session_id", "correlation_id")
    )
    faults = [
        FaultInfo(message=_utf8(fault.message), where=_utf8(fault.where), line=fault.line) for fault in error.faults
    ]
    return ChainResponse(
        req_id=req_id,
        chain_id=chain_id,
        session_id=session_id,
        correlation_id=correlation_id,
        run_id="",
        status="failed",
        state="failed",
        success=False,
        outputs={},
        final_output=None,
        duration_ms=0,
        nodes_run=0,
        error=ChainError(code=error.code, message=_utf8(str(error)), faults=faults),
    )


def refused_turn(error: ConfigError) -> RunResult:
    """Return the result of a rejected turn: nothing of it ran."""
    return RunResult(
        run_id="", status="failed", state="failed", error=ErrorInfo(code=error.code, message=_utf8(str(error)))
    )


def chain_event(
    event: RunEvent, request: ChainRequest, bodies: Mapping[str, str], step: StepRecord | None
) -> ChainEvent | None:
    """Return the chain event of a run event; None if it concerns no node of the request.

    Args:
        event: The run event.
        request: The chain request.
        bodies: Map → its map_node, from `bodies_of`.
        step: The record of the event's step; needed for an event that ends one.
    """
    phase = PHASES.get(event.step_state) if event.ends_step or event.step_state == "running" else None
    if phase is None or event.step is None or event.step == START:
        return None
    ref = node_of(event.step)
    if ref.inner and (phase == "start" or step is None or not _is_nodes_own(step)):
        return None
    return ChainEvent(
        seq=event.seq,
        run_id=event.run_id,
        req_id=request.id,
        chain_id=request.chain_id,
        correlation_id=request.correlation_id,
        node_id=_node_id(ref, bodies),
        phase=phase,
        output=step.output if step and phase == "done" else None,
        error=event.explanation or None,
        iteration=ref.iteration,
        index=ref.index,
    )


def bodies_of(request: ChainRequest) -> dict[str, str]:
    """Return the maps of a request: map → the node that it runs for each item."""
    return {node.node_id: node.map_node for node in request.nodes if node.map_node}


def _node_id(ref: NodeRef, bodies: Mapping[str, str]) -> str:
    return bodies.get(ref.node_id, ref.node_id) if ref.index is not None else ref.node_id


def _is_nodes_own(step: StepRecord) -> bool:
    """Return whether the end of a step is that of a node or item: it is its own step, or the exit of its step's expansion."""
    ref = node_of(step.step_id)
    is_items = ref.index is not None and step.spec.window == step.step_id.partition("/")[0]
    return not ref.inner or step.spec.scope is None or is_items


def _was_executed(step: StepRecord) -> bool:
    return step.attempt > 0 or (step.spec.role == "wait" and step.state in ("done", "failed"))


def _failed(run: RunRecord, request: ChainRequest, bodies: Mapping[str, str]) -> list[str]:
    """Return the failed nodes in the order of the request; items of a map by their index."""
    steps = [
        step
        for step_id, step in run.steps.items()
        if step.state == "failed" and step_id != START and _is_nodes_own(step)
    ]
    failed = defaultdict(set)
    for ref in (node_of(step.step_id) for step in steps):
        failed[_node_id(ref, bodies)].add(-1 if ref.index is None else ref.index)
    return [_item_name(node.node_id, index) for node in request.nodes for index in sorted(failed.get(node.node_id, ()))]


def _item_name(node_id: str, index: int) -> str:
    return node_id if index < 0 else f"{node_id}[{index}]"


def _chain_error(run: RunRecord, bodies: Mapping[str, str]) -> ChainError | None:
    error = run.error
    if error is None:
        return None
    if run.status in ERROR_CODES:
        return ChainError(code=ERROR_CODES[run.status], message=error.message)
    if error.code in REFUSALS:
        return ChainError(code=error.code, message=error.message)
    if error.step is None or error.step == START:
        return ChainError(code="chain_error", message=error.message)
    ref = node_of(error.step)
    node_id = _node_id(ref, bodies)
    name = _item_name(node_id, -1 if ref.index is None else ref.index)
    return ChainError(
        code="chain_node_error", message=f"node {name!r} failed: {error.message}", node_id=node_id, index=ref.index
    )


def _steps_run(run: RunRecord) -> int:
    return sum(
        1
        for step in run.steps.values()
        if step.state in ("done", "failed") and step.step_id != START and not step.spec.decides
    )


def duration_ms(run: RunRecord) -> int:
    """Return the milliseconds from the run's acceptance to its close, or until now."""
    return (run.closed_at_ms or run.now_ms) - run.created_at_ms


def _utf8(text: object) -> str:
    """Return a text without lone surrogates, which cannot be encoded; an empty one for any other value."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def is_over(status: str) -> bool:
    """Return whether a run with this status is over."""
    return status in RUN_OVER


def describe_request(run: RunRecord) -> str:
    """Return the request of a run in one line."""
    if run.kind == "chain":
        return f"chain {stored(ChainRequest, run.request).chain_id}"
    return " ".join(str(json.loads(run.request)["text"]).split())[:60]


def answer_text(output: JsonValue) -> str:
    """Return an output as text for people: a string as it is, other values as indented JSON."""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
