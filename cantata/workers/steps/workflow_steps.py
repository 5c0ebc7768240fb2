"""Steps of workflows in Python: their advances, and the functions that they call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from cantata.errors import CodeMismatchError, StepError
from cantata.models.graph import STEP_OVER, Outcome
from cantata.models.values import ErrorInfo, JsonValue, Usage
from cantata.state.redis import clock
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.tools import functions, schemas
from cantata.workflows import expansion, guard
from cantata.workflows.api import Workflow
from cantata.workflows.decorator import is_workflow
from cantata.workflows.history import Activation, CommandOutcome
from cantata.workflows.replay import STOPPED, WARNED_COMMANDS, NonDeterminismError, Replay, arguments_of, text_parameter

LAST_ACTIVATION = "activation"  # in the detail of the last advance, whose output is the result; that of others is their activation
MAX_HISTORIES = 100  # of workflows that one process advanced last, kept in memory

_histories: dict[tuple[str, str], _Recorded] = {}


def workflow_advance(context: StepContext, recorded_activation: Activation | None = None) -> Outcome:
    """Replay a workflow, and expand to the commands that it gives next, or return its result.

    If all that a recorded activation received is over, this one receives the same, at the recorded time.
    """
    root, number, name = context.text_param("root") or context.begun.step_id, context.int_param("advance"), context.text_param("workflow")
    reference = context.definitions.workflows[name].function
    function = functions.load(reference, context.folder)
    if not is_workflow(function):
        raise StepError(f"{reference} is not a workflow; decorate it with @workflow", code="not_a_workflow")
    is_cancelled = expansion.CANCELLED in context.begun.inputs
    recorded = _read(context, root, number, is_cancelled=is_cancelled)
    history, outcomes = recorded.activations, recorded.outcomes
    given = history[0].input if history else context.node_input
    if context.params.get("is_turn") and not history:
        given = {text_parameter(function): given["text"]}
    commands = [command for activation in history for command in activation.commands]
    ids = [expansion.step_id(root, command) for command in commands]
    known = {index for activation in history for index in activation.received}
    received: Sequence[int] = [index for index in sorted(outcomes) if index not in known]
    at, run_id = clock.now(), context.begun.run_id
    if recorded_activation is not None and outcomes.keys() >= set(recorded_activation.received):
        at, received, run_id = recorded_activation.at, recorded_activation.received, recorded_activation.run_id or run_id
        is_cancelled = recorded_activation.cancelled
    replay = Replay(run_id, context.definitions, history, outcomes, root)
    arguments = arguments_of(function, given)
    try:
        with context.process.watched(context.begun, guard.blocked()):
            main = partial(function, Workflow(replay), **arguments)
            advance = replay.run(main, at=at, received=received, given=given, cancelled=is_cancelled)
    except NonDeterminismError as error:
        message = f"the code of workflow {name!r} ({reference}) does not follow the run's history: {error}. Deploy the code that the run"
        raise CodeMismatchError(f"{message} began with, or keep both ways with wf.patched") from error
    if advance.is_over:
        _histories.pop((context.begun.run_id, root), None)
        activation = advance.activation.model_dump(mode="json", exclude_defaults=True, exclude={"input"})
        detail: dict[str, JsonValue] = {LAST_ACTIVATION: activation}
        if advance.continues_with is None:
            return Outcome(output=advance.output, detail=detail)
        return Outcome(fragment=expansion.continuation(root, context.begun.spec, advance.continues_with), detail=detail)
    ids += [expansion.step_id(root, command.recorded) for command in advance.commands]
    is_long = len(commands) < WARNED_COMMANDS <= len(ids)
    warnings = (f"the workflow has {len(ids):,} commands, and each advance replays them all; use wf.continue_as",) if is_long else ()
    return Outcome(
        output=advance.activation.model_dump(mode="json", exclude_defaults=True), warnings=warnings,
        fragment=expansion.fragment(root, number, context.begun.spec, advance, ids, context.definitions),
    )  # fmt: skip


@dataclass(slots=True)
class _Recorded:
    """The part of a workflow's history that does not change any more."""

    activations: list[Activation] = field(default_factory=list)
    outcomes: dict[int, CommandOutcome] = field(default_factory=dict)


def _read(context: StepContext, root: str, number: int, *, is_cancelled: bool) -> _Recorded:
    """Return the history of a workflow before advance `number`, and the outcomes of its commands that are over.

    A process keeps what it read of the workflows that it advanced last, and reads only what came since: if the step waited for all of
    some commands, their outputs come with it, and only an output of null needs another look, since the command may have failed. If the
    run is cancelled, all commands are over.
    """
    run_id, reader, inputs = context.begun.run_id, context.process.ledger.reader, context.begun.inputs
    known = _histories.pop((run_id, root), _Recorded())
    activations = known.activations[:number]  # fewer for a fork, or an attempt that was late
    if number and len(activations) == number - 1:
        activations.append(Activation.model_validate(inputs[expansion.LAST]))
    missing = [expansion.advance_id(root, each) for each in range(len(activations), number)]
    activations += [Activation.model_validate_json(text or "") for text in reader.outputs(run_id, missing)] if missing else []
    commands = [command for activation in activations for command in activation.commands]
    received = {index for activation in activations for index in activation.received}
    outcomes = {index: outcome for index, outcome in known.outcomes.items() if index in received}
    given = {int(name): value for name, value in inputs.items() if name.isdecimal()}
    outcomes |= {index: CommandOutcome(value) for index, value in given.items() if value is not None}
    wanted = [index for index in (received.union(given) if given and not is_cancelled else range(len(commands))) if index not in outcomes]
    found = reader.outcomes(run_id, [expansion.step_id(root, commands[index]) for index in wanted]) if wanted else []
    outcomes |= {index: outcome_of(*each) for index, each in zip(wanted, found, strict=True) if each[0] in STEP_OVER}
    recorded = _Recorded(activations, outcomes)
    _histories[run_id, root] = recorded
    while len(_histories) > MAX_HISTORIES:
        _histories.pop(next(iter(_histories)), None)
    return recorded


def outcome_of(state: str, output: str | None, info: Mapping[str, Any]) -> CommandOutcome:
    """Return the outcome of a command from the state, the output as JSON text and the info of its step."""
    if state == "skipped":
        return CommandOutcome(error=ErrorInfo(code=STOPPED, message="the step was stopped"))
    if state == "failed":
        return CommandOutcome(error=ErrorInfo.model_validate(info["error"]))
    return CommandOutcome(json.loads(output or "null"), timed_out=bool(info.get("timed_out")))


def workflow_call(context: StepContext) -> Outcome:
    """Call a function of a workflow's module."""
    name = context.text_param("function")
    function = functions.load(name, context.folder)
    args, kwargs = cast("list[JsonValue]", context.params["args"]), cast("dict[str, JsonValue]", context.params["kwargs"])

    def call() -> Any:
        return function(*args, **kwargs)

    return Outcome(output=schemas.jsonable(functions.call(context, name, call, {})), usage=Usage(tool_calls=1))
