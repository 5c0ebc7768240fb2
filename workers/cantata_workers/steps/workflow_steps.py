"""Steps of workflows in Python: their advances, and the functions that they call."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog

from cantata.engine.requests import workflow_timeout
from cantata.engine.start import accept_run, id_of_key
from cantata.errors import ConfigError, MustWait, StepError, UnavailableError
from cantata.features.forks.fork_requests import FORKED_AT, FORKED_FROM
from cantata.flows.chains import checks
from cantata.flows.graph import START, STEP_OVER, Outcome, Spec
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.flows.workflows import expansion, guard
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.conversion import arguments_of, call_arguments, text_parameter
from cantata.flows.workflows.decorator import check_workflow
from cantata.flows.workflows.history import Activation, CommandOutcome, outcome_of
from cantata.flows.workflows.replay import WARNED_COMMANDS, NonDeterminismError, Replay
from cantata.ledger.records import AttemptRecord, Begun, Ready
from cantata.ledger.redis import clock
from cantata.operation import fault_points
from cantata.values import JsonValue, Usage, stored
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.tools import functions, schemas

log = structlog.get_logger(__name__)

STARTED_BY = "started_by"  # label of a run that a workflow began: the run of that workflow
FULL_WAIT_S = 5.0  # before a run is begun again that Redis has no room for
MAX_KEPT = 100  # workflows that one process advanced last, kept in memory where they wait

_kept: dict[tuple[str, str], tuple[Replay, Callable[..., Any], JsonValue]] = {}
"""By run and step; with the function, and the last activation as it was recorded."""


@handles("workflow.advance")
def workflow_advance(context: StepContext, recorded_activation: Activation | None = None) -> Outcome:
    """Go on with a workflow, by a replay if this process has not kept it; expand to its new commands, or return its result.

    If all that a recorded activation received is over, this one receives the same, at the recorded time.
    """
    root, number, name = (
        context.text_param("root") or context.begun.step_id,
        context.int_param("advance"),
        context.text_param("workflow"),
    )
    run_id, reference = context.begun.run_id, context.definitions.workflows[name].function
    function = functions.load(reference, context.folder)
    check_workflow(function, reference)
    is_cancelled = expansion.CANCELLED in context.begun.inputs
    started_in = recorded_activation.run_id if recorded_activation else ""
    replay = _take(context, root, number, function)
    replay = replay or Replay(started_in or run_id, context.definitions, _history(context, root, number), root)
    before = len(replay.commands)
    given = replay.history[0].input if replay.history else context.node_input
    if context.params.get("is_turn") and not replay.history:
        given = {text_parameter(function): given["text"]}
    try:
        arguments = {} if replay.is_waiting else arguments_of(function, given)
        outcomes = _outcomes(context, root, replay)
        at, received = clock.now(), sorted(outcomes.keys() - replay.received)
        is_recorded = recorded_activation is not None and outcomes.keys() | replay.received >= set(
            recorded_activation.received
        )
        if recorded_activation and is_recorded:
            at, received, is_cancelled = (
                recorded_activation.at,
                list(recorded_activation.received),
                recorded_activation.cancelled,
            )
        with context.process.watched(context.begun, guard.blocked()):
            main = partial(function, Workflow(replay), **arguments)
            if not is_recorded:
                received = _in_order(context, root, replay, main, outcomes, received)
            advance = replay.run(main, at=at, outcomes=outcomes, received=received, given=given, cancelled=is_cancelled)
    except BaseException as error:
        replay.discard()
        if isinstance(error, StepError) and error.code == "workflow_error" and error.__cause__:
            log.info("workflow_failed", workflow=name, error=str(error), exc_info=error.__cause__)
        if not isinstance(error, NonDeterminismError):
            raise
        raise error.mismatch(name, reference) from error
    if advance.is_over:
        replay.discard()
        activation = advance.activation.model_dump(mode="json", exclude_defaults=True, exclude={"input"})
        detail: dict[str, JsonValue] = {expansion.LAST_ACTIVATION: activation}
        if advance.continues_with is None:
            return Outcome(output=advance.output, detail=detail)
        return Outcome(
            fragment=expansion.continuation(root, context.begun.spec, advance, replay.commands), detail=detail
        )
    output = advance.activation.model_dump(mode="json", exclude_defaults=True)
    _keep((run_id, root), replay, function, output)
    is_long = before < WARNED_COMMANDS <= len(replay.commands)
    what = f"the workflow has {len(replay.commands):,} commands, all of which are replayed when another process goes on with it"
    warnings = (f"{what}; use wf.continue_as",) if is_long else ()
    return Outcome(
        output=output,
        warnings=warnings,
        fragment=expansion.fragment(root, number, context.begun.spec, advance, replay.commands, context.definitions),
    )


def following_advance(last: Begun, last_record: AttemptRecord, ended: Begun, record: AttemptRecord) -> Begun | None:
    """Return the advance behind an ended step as this process would begin it, if it waits for that step alone and is kept here.

    `last` is the step recorded before it, in the same message. None for a step whose output is null: whether it failed is not recorded yet.
    """
    fragment = last_record.outcome.fragment
    if (
        last.spec.kind != "workflow.advance"
        or not fragment
        or record.outcome.status != "done"
        or record.output == "null"
    ):
        return None
    advance = fragment.steps[-1]
    index = next((name for name, source in advance.reads.items() if source == ended.step_id), None)
    is_kept = (ended.run_id, str(advance.params.get("root"))) in _kept
    if index is None or len(advance.reads) != 2 or not is_kept or ended.spec.at_most_once or record.outcome.fragment:
        return None
    inputs = {expansion.LAST: json.loads(last_record.output), index: json.loads(record.output)}
    return replace(
        ended,
        step_id=advance.id,
        attempt=1,
        spec=advance,
        given=None,
        failures=0,
        inputs=inputs,
        asked_at=time.monotonic(),
        waited_s=None,
    )


def _take(context: StepContext, root: str, number: int, function: Callable[..., Any]) -> Replay | None:
    """Return the workflow that this process kept, if it waits where the recorded history ends; another is dropped."""
    replay, known, last = _kept.pop((context.begun.run_id, root), (None, None, None))
    if replay is None:
        return None
    if known is function and len(replay.history) == number and last == context.begun.inputs.get(expansion.LAST):
        return replay
    replay.discard()  # its last activation was not recorded, it is late or a fork's, or the code was edited
    return None


def _keep(key: tuple[str, str], replay: Replay, function: Callable[..., Any], last: JsonValue) -> None:
    _kept[key] = replay, function, last
    while len(_kept) > MAX_KEPT:
        with suppress(StopIteration, KeyError):  # another thread may take it
            _kept.pop(next(iter(_kept)))[0].discard()


@atexit.register
def _discard_kept() -> None:
    """Drop the workflows where they wait, so that their code is not executed while Python ends."""
    while _kept:
        _kept.popitem()[1][0].discard()


def _history(context: StepContext, root: str, number: int) -> list[Activation]:
    """Return the recorded activations before advance `number`."""
    if not number:
        return []
    earlier = [expansion.advance_id(root, each) for each in range(number - 1)]
    texts = context.process.ledger.reader.outputs(context.begun.run_id, earlier) if earlier else []
    return [*(stored(Activation, text or "") for text in texts), _last(context)]


def _last(context: StepContext) -> Activation:
    return Activation.model_validate(context.begun.inputs[expansion.LAST])


def _outcomes(context: StepContext, root: str, replay: Replay) -> dict[int, CommandOutcome]:
    """Return the outcomes that came since the last activation; for a replay those before it too.

    If the step waited for all of some commands, their outputs come with it, and only an output of null needs another look, since the
    command may have failed. Others that are open may be over too: then their futures are done, whoever awaits them.
    """
    given = {int(name): value for name, value in context.begun.inputs.items() if name.isdecimal()}
    outcomes = {index: CommandOutcome(value) for index, value in given.items() if value is not None}
    new = set(range(len(replay.commands))) - replay.received
    wanted = [*(new if replay.is_waiting else replay.received.union(new)) - outcomes.keys()]
    steps = [expansion.step_id(root, replay.commands[index]) for index in wanted]
    found = context.process.ledger.reader.outcomes(context.begun.run_id, steps) if steps else []
    return outcomes | {
        index: outcome_of(*each) for index, each in zip(wanted, found, strict=True) if each[0] in STEP_OVER
    }


def _in_order(
    context: StepContext,
    root: str,
    replay: Replay,
    main: Callable[[], Any],
    outcomes: Mapping[int, CommandOutcome],
    received: list[int],
) -> list[int]:
    """Return the commands whose outcomes came since the last activation in the order in which they ended, if the code can tell it."""
    if len(received) < 2:
        return received
    if not replay.is_waiting:
        replay.restore(main, outcomes)
    if not replay.heeds_order(received):
        return received
    index_of = {expansion.step_id(root, replay.commands[index]): index for index in received}
    return [index_of[name] for name in context.process.ledger.reader.in_order_of_end(context.begun.run_id, [*index_of])]


@handles("workflow.start")
def workflow_start(context: StepContext) -> Outcome:
    """Begin a run of its own of a workflow or a chain, and return its id. Another attempt of this step finds the same run."""
    begun, definitions, ledger, name = (
        context.begun,
        context.definitions,
        context.process.ledger,
        context.text_param("workflow"),
    )
    run_id = id_of_key(f"{begun.run_id}\n{begun.step_id}")
    if ledger.runs.is_known(run_id):
        return Outcome(output=run_id)
    node = ChainNode(
        node_id=name, kind="workflow" if name in definitions.workflows else "chain", name=name, input=context.node_input
    )
    request = ChainRequest(chain_id=run_id[:8], nodes=[node], entry_node=name)
    faults, code = checks.check(request, definitions)
    try:
        if faults:
            raise ConfigError(faults, code=code)
        text = request.model_dump_json(exclude_defaults=True)
        own = {
            key: label
            for key, label in ledger.runs.request_of(begun.run_id)[3].items()
            if key not in (FORKED_FROM, FORKED_AT)
        }
        with ledger.quotas.start(begun.tenant, definitions.limits.quota_of(begun.tenant), len(text)):
            accepted = accept_run(
                ledger,
                run_id,
                kind="chain",
                request=text,
                definitions=definitions,
                definitions_text=ledger.runs.definitions(begun.run_id, begun.definitions),
                labels={**own, STARTED_BY: begun.run_id},
                target=name,
                timeout=workflow_timeout(name, definitions),
            )
    except ConfigError as error:
        raise StepError(f"wf.start({name!r}): {error}", code=error.code) from error
    except UnavailableError as error:  # Redis is nearly full
        raise MustWait(FULL_WAIT_S, str(error)) from error
    context.process.send(
        [(run_id, Ready(START, Spec(kind="run.start", decides=True, expands=True), accepted.priority))]
    )
    return Outcome(output=run_id)


@handles("workflow.call")
def workflow_call(context: StepContext) -> Outcome:
    """Call a function of a workflow's module."""
    name = context.text_param("function")
    function = functions.load_called(name, context.folder)
    given = cast("list[JsonValue]", context.params["args"]), cast("dict[str, JsonValue]", context.params["kwargs"])
    args, kwargs = call_arguments(function, *given)
    fault_points.at("tool-started")
    output = functions.call(context, name, partial(function, *args), kwargs)
    fault_points.at("tool-finished")
    return Outcome(output=schemas.jsonable(output), usage=Usage(tool_calls=1))
