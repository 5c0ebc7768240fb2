"""A provider's batch in two steps: its creation, and its end, which the ledger's timers look for. No worker waits meanwhile."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TypeVar

from cantata.errors import ModelError, StepError
from cantata.flows.graph import Outcome
from cantata.flows.turns.agent_steps import agent_step
from cantata.flows.wire import ProviderBatchRequest, RowOutcome
from cantata.values import ErrorInfo, JsonValue, Usage, stored
from cantata_workers.models.llm import provider_batches
from cantata_workers.models.llm.model_replies import Reply
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.steps.agent_turns import outcome_of
from cantata_workers.steps.model_turns import ModelTurn

MAX_SEARCHES = 10  # for the batch of a cancelled run, whose worker may be creating it: within two minutes
MIN_POLL_S, MAX_POLL_S, POLL_FACTOR = 1.0, 300.0, 1.5  # between two looks at a batch

Result = TypeVar("Result")


@handles("batch.create")
def batch_create(context: StepContext) -> Outcome:
    """Create the batch of the run's rows, unless the provider has it from an earlier attempt, whose worker died or lost the answer.

    So it is with rows that were submitted before: Redis may have lost their run.
    """
    request, mark = _request_of(context), context.begun.run_id
    first = ModelTurn.read(_row_context(context, request.agent, ""))
    model, schema = first.models()[0], first.validator.schema if first.validator else None
    may_exist = request.is_again or context.begun.attempt > 1
    found = context.wait_for(provider_batches.find(model, mark)) if may_exist else None
    if found is None:
        turns = {
            row: replace(first, context=_row_context(context, request.agent, text))
            for row, text in request.rows.items()
        }
        lines = (provider_batches.request_line(row, model, turn.messages(()), schema) for row, turn in turns.items())
        found = context.wait_for(provider_batches.create(model, mark, "".join(lines)))
    return Outcome(output=found, detail={"model": model.model, "batch": found})


@handles("batch.collect")
def batch_collect(context: StepContext) -> Outcome:
    """Return the outcome of each row once the batch is over; until then fail for now, and try again later."""
    request, batch_id = _request_of(context), str(context.begun.inputs["batch"])
    turn = ModelTurn.read(_row_context(context, request.agent, ""))
    model = turn.models()[0]
    batch = _read(context, provider_batches.retrieve(model, batch_id))
    if batch.status in provider_batches.OPEN or (batch.status == "completed" and not batch.files):
        raise _later(
            context,
            f"batch {batch_id} of the provider is {batch.status}: {batch.done} of {len(request.rows)} rows",
            "batch_open",
        )
    replies = _read(context, provider_batches.replies(model, batch))
    reason = f"batch {batch_id} of the provider is {batch.status}, without an answer to this row{batch.error and f': {batch.error}'}"
    missing = ErrorInfo(code=f"batch_{batch.status}", message=reason)
    rows = {row: _outcome_of_row(turn, replies.get(row, missing)) for row in request.rows}
    usage = sum((each.usage for each in rows.values()), Usage())
    output: dict[str, JsonValue] = {
        row: each.model_dump(mode="json", exclude_defaults=True) for row, each in rows.items()
    }
    return Outcome(output=output, usage=usage, detail={"model": model.model, "batch": batch_id})


@handles("batch.cancel")
def batch_cancel(context: StepContext) -> Outcome:
    """Cancel the batch of a cancelled run at the provider, unless it is over. The output is the batch; null if there is none."""
    request = _request_of(context)
    model = ModelTurn.read(_row_context(context, request.agent, "")).models()[0]
    batch_id = request.batch or _read(context, provider_batches.find(model, str(request.cancels)))
    if batch_id is None and context.begun.failures < MAX_SEARCHES:
        raise _later(context, f"the provider does not list a batch of run {request.cancels}", "batch_unknown")
    if batch_id and _read(context, provider_batches.retrieve(model, batch_id)).status in provider_batches.OPEN - {
        "cancelling"
    }:
        _read(context, provider_batches.cancel(model, batch_id))
    return Outcome(output=batch_id, detail={"model": model.model, "batch": batch_id})


def _request_of(context: StepContext) -> ProviderBatchRequest:
    return stored(ProviderBatchRequest, context.process.ledger.runs.request_of(context.begun.run_id)[1])


def _row_context(context: StepContext, name: str, text: str) -> StepContext:
    """Return the context that a turn with this text would have."""
    step = agent_step(name, name, context.definitions.agents[name], "@text")
    inputs: Mapping[str, str] = {"@text": text}
    return replace(context, begun=replace(context.begun, step_id=name, spec=step, inputs=inputs, run_kind="turn"))


def _read(context: StepContext, call: Coroutine[object, object, Result]) -> Result:
    """Return what a provider says about its batch. Whatever fails is tried again: the batch costs money, and its answers are kept."""
    try:
        return context.wait_for(call)
    except ModelError as error:
        raise error if error.code == "model_unknown" else _later(context, str(error), error.code) from None


def _later(context: StepContext, message: str, code: str) -> StepError:
    delay_s = min(MAX_POLL_S, MIN_POLL_S * POLL_FACTOR ** min(context.begun.failures, 20))
    return StepError(message, code=code, retryable=True, retry_after_s=delay_s)


def _outcome_of_row(turn: ModelTurn, answer: Reply | ErrorInfo) -> RowOutcome:
    if isinstance(answer, ErrorInfo):
        return RowOutcome(error=answer)
    try:
        outcome = outcome_of(turn, answer, (), 0.0)
    except StepError as error:
        return RowOutcome(error=ErrorInfo(code=error.code, message=str(error)), usage=answer.usage)
    if outcome.fragment is None:
        return RowOutcome(output=outcome.output, usage=answer.usage)
    message = f"the reply of agent {turn.name!r} does not fit, and a batch asks once: {answer.text[:200]}"
    return RowOutcome(error=ErrorInfo(code="bad_reply", message=message), usage=answer.usage)
