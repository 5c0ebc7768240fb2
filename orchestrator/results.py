"""From what the ledger knows of a run to what its caller gets: results, responses, chain events."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.models.graph import START
from orchestrator.models.values import ErrorInfo, JsonValue
from orchestrator.models.wire import RUN_OVER, ChainError, ChainEvent, ChainNode, ChainRequest, ChainResponse, RunEvent, RunResult, Turn
from orchestrator.planning.strategies.chains import node_of
from orchestrator.state.ledger import RunRecord, StepRecord

ERROR_CODES = {"timed_out": "timeout", "cancelled": "cancelled"}
REFUSALS = frozenset({"bad_entry", "bad_request", "chain_cycle"})
PHASES = {"started": "start", "done": "done", "failed": "error", "late": "error", "skipped": "skip"}


def turn_result(run: RunRecord) -> RunResult:
    """How a turn ended, or how far it is."""
    asked = [step for step in run.steps.values() if step.spec.work.startswith("agents:") and step.state in ("done", "failed")]
    answered = [step for step in asked if step.spec.kind == "agent.turn" and step.state == "done"]
    last = run.answering(run.terminals[-1]) if run.terminals else None
    agents = dict.fromkeys(step.spec.work.removeprefix("agents:") for step in answered)
    return RunResult(
        run_id=run.run_id,
        status=run.status,
        output=last.output if last and last.state == "done" else None,
        error=run.error,
        usage=run.usage,
        agents=list(agents),
        steps_run=_steps_run(run),
        duration_ms=_duration_ms(run),
    )


def chain_response(run: RunRecord) -> ChainResponse:
    """How a chain ended, or how far it is; outputs so far are always there."""
    request = ChainRequest.model_validate_json(run.request)
    over = {node.node_id: _node_record(run, node) for node in request.nodes}
    bodies = {node.map_node: node.node_id for node in request.nodes if node.map_node}
    items = [step for step in run.steps.values() if _is_item(step)]
    failed = _failed(run, request)
    outputs = {name: step.output for name, step in over.items() if step is not None and step.state in ("done", "failed")}
    outputs |= {body: outputs[owner] for body, owner in bodies.items() if owner in outputs}
    finals = {
        name: outputs[name] for name in run.terminals if name in outputs and (found := over[name]) is not None and found.state == "done"
    }
    return ChainResponse(
        chain_id=request.chain_id,
        session_id=request.session_id,
        correlation_id=request.correlation_id,
        run_id=run.run_id,
        status=run.status,
        success=run.status == "succeeded" and not failed,
        outputs=outputs,
        final_output=next(iter(finals.values())) if len(finals) == 1 else (dict(finals) or None),
        duration_ms=_duration_ms(run),
        nodes_run=sum(1 for name, step in over.items() if name not in bodies and step is not None and _was_begun(run, name)),
        items_run=sum(1 for step in items if step.attempt > 0),
        failed=failed,
        usage=run.usage,
        error=_chain_error(run, request),
    )


def chain_event(event: RunEvent, request: ChainRequest, bodies: Mapping[str, str], outputs: Mapping[str, StepRecord]) -> ChainEvent | None:
    """What a run event says of a node of the request, if it says anything. `bodies` is map node id → its map_node."""
    phase = PHASES.get(event.type)
    if phase is None or event.step is None or event.step.startswith("@"):
        return None
    place = node_of(event.step)
    gathered = event.step.endswith("/gather")
    if place.inner and not gathered:
        return None
    if gathered and phase == "start":
        return None
    is_item = place.index is not None and not gathered
    node_id = bodies.get(place.node_id, place.node_id) if is_item else place.node_id
    step = outputs.get(event.step)
    error = event.detail.get("error")
    return ChainEvent(
        seq=event.seq,
        run_id=event.run_id,
        chain_id=request.chain_id,
        correlation_id=request.correlation_id,
        node_id=node_id,
        phase=phase,  # type: ignore[arg-type]  # PHASES holds the literals
        output=step.output if step is not None and phase == "done" else None,
        error=str(error.get("message")) if isinstance(error, dict) else None,
        iteration=place.iteration,
        index=place.index if is_item else None,
    )


def _node_record(run: RunRecord, node: ChainNode) -> StepRecord | None:
    return run.answering(node.node_id)


def _was_begun(run: RunRecord, name: str) -> bool:
    step = run.answering(name)
    first = run.steps.get(name) or run.steps.get(f"{name}#1")
    return any(found is not None and (found.attempt > 0 or found.state in ("done", "failed")) for found in (step, first))


def _is_item(step: StepRecord) -> bool:
    head, _, tail = step.step_id.rpartition("/")
    return bool(head) and tail.isdigit() and "/" not in head and step.spec.window is not None


def _failed(run: RunRecord, request: ChainRequest) -> list[str]:
    bodies = {node.node_id: node.map_node for node in request.nodes if node.map_node}
    failed: dict[str, None] = {}
    for step in run.steps.values():
        if step.state == "failed" and step.step_id != START:
            place = node_of(step.step_id)
            if place.inner and not step.step_id.endswith("/gather"):
                continue
            name = bodies.get(place.node_id) if _is_item(step) else place.node_id
            failed[name or place.node_id] = None
    order = {node.node_id: position for position, node in enumerate(request.nodes)}
    return sorted(failed, key=lambda name: order.get(name, len(order)))


def _chain_error(run: RunRecord, request: ChainRequest) -> ChainError | None:
    error = run.error
    if error is None:
        return None
    if run.status in ERROR_CODES:
        return ChainError(code=ERROR_CODES[run.status], message=error.message)
    if error.code in REFUSALS:
        return ChainError(code=error.code, message=error.message)
    if error.step is None or error.step.startswith("@"):
        return ChainError(code="chain_error", message=error.message)
    place = node_of(error.step)
    bodies = {node.node_id: node.map_node for node in request.nodes if node.map_node}
    node_id = bodies.get(place.node_id, place.node_id) if place.index is not None else place.node_id
    return ChainError(code="chain_node_error", message=f"node {node_id!r} failed: {error.message}", node_id=node_id)


def _steps_run(run: RunRecord) -> int:
    return sum(1 for step in run.steps.values() if step.state in ("done", "failed") and step.step_id != START and not step.spec.decides)


def _duration_ms(run: RunRecord) -> int:
    return (run.closed_at_ms or run.now_ms) - run.created_at_ms


def is_over(status: str) -> bool:
    """Whether a run with this status has ended."""
    return status in RUN_OVER


def describe_turn(run: RunRecord) -> str:
    """What a run was asked, in a line."""
    text = (
        Turn.model_validate_json(run.request).text
        if run.kind == "turn"
        else f"chain {ChainRequest.model_validate_json(run.request).chain_id}"
    )
    return " ".join(text.split())[:60]


def error_of(step: StepRecord) -> ErrorInfo | None:
    """Why a step failed."""
    return step.error


def answer_text(output: JsonValue) -> str:
    """An output as a person reads it."""
    import json  # noqa: PLC0415

    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
