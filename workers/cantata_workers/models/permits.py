"""Acquires and settles permits for model calls against the shared limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from cantata.engine import permit_wakeups
from cantata.engine.limits.limiter import Ask, Exhausted, Wait, is_limited
from cantata.errors import CantataError, ModelError, MustPause, MustWait, StepError
from cantata.flows.definitions import Budgets, Model
from cantata.ledger.redis.connection import RedisFailure
from cantata.operation import fault_points, metrics
from cantata.values import Usage
from cantata_workers.models import llm
from cantata_workers.models.dialects.conversation import Message
from cantata_workers.process.step_context import StepContext

log = structlog.get_logger(__name__)

REDATE_AFTER_S = 0.5  # a request sent later than this after its permit was taken is counted anew; the limiter has a margin of a second
DEFAULT_ANSWER_TOKENS = 1024  # reserved for an answer where the parameters name no maximum


class Permit:
    """The right to make one model call. Its `reply`, once there, has the usage to settle."""

    def __init__(self, context: StepContext, model: str, messages: Sequence[Message], *, is_counted: bool) -> None:
        """Create the permit for a request, which `is_counted` by the limiter."""
        self.reply: llm.Reply | None = None
        self.streamed = 0
        """Characters of the reply that came so far."""
        self.is_counted = is_counted
        self._model, self._messages = model, messages
        self._context = context
        self._counted_at = time.monotonic()  # or a little later, since the limiter is called next
        self.is_sent = False

    async def note_sent(self) -> None:
        """Note that the request is sent now: it counts from now, unless the permit was taken only a moment ago."""
        self.is_sent = True
        if self.is_counted and time.monotonic() - self._counted_at > REDATE_AFTER_S:
            await asyncio.to_thread(self._context.process.limiter.redate, self._context.begun.lease)

    def cancelled_usage(self) -> Usage:
        """Return the estimated usage of a cancelled call: providers bill it, but report nothing. Zero if it was never sent."""
        if not self.is_sent:
            return Usage()
        return llm.estimate_usage(
            self._model, llm.estimate_tokens(self._messages), -(-self.streamed // llm.CHARACTERS_PER_TOKEN)
        )


@asynccontextmanager
async def permit_for_call(context: StepContext, model: Model, messages: Sequence[Message]) -> AsyncIterator[Permit]:
    """Hold a permit for one call while the block lasts, and settle it.

    The first attempt of a step makes an unlimited call without the limiter, unless its model may be paused.
    Raises MustPause if the model is paused, MustWait if the limits have no room now, StepError ('budget') if a budget has no room at all.
    """
    begun, limits, process = context.begun, context.definitions.limits, context.process
    is_counted = (
        begun.attempt > 1 or is_limited(model.model, begun.tenant, limits) or process.pauses.may_hold(model.model)
    )
    if is_counted:
        await _take(context, model, messages)
    permit, cancelled = Permit(context, model.model, messages, is_counted=is_counted), Usage()
    try:
        with llm.on_request_start(permit.note_sent):
            yield permit
    except ModelError as error:
        if error.code == "rate_limited" and error.retry_after_s:
            pause_s = min(error.retry_after_s, limits.max_pause_s)
            await asyncio.to_thread(
                process.pauses.begin, model.model, pause_s, asked_s=error.retry_after_s, message=str(error)
            )
        raise
    except asyncio.CancelledError:
        cancelled = permit.cancelled_usage()
        raise
    finally:
        await asyncio.shield(_settle(context, permit, cancelled))


async def _take(context: StepContext, model: Model, messages: Sequence[Message]) -> None:
    ask = _ask(context, model, llm.estimate_tokens(messages))
    match await asyncio.to_thread(context.process.limiter.take, ask, context.definitions.limits):
        case Wait() as wait:
            metrics.record_limit_wait(model.model, wait.reason, wait.seconds)
            if wait.reason == "pause":
                message = await asyncio.to_thread(context.process.limiter.pause_message, model.model)
                raise MustPause(wait.seconds, message, ahead=wait.ahead, is_queued=True)
            raise MustWait(wait.seconds, _reason_of(wait), ahead=wait.ahead, is_queued=True)
        case Exhausted() as exhausted:
            metrics.record_budget_refusal(exhausted.budget)
            raise StepError(str(exhausted), code="budget")
    fault_points.at("budget-reserved")
    context.process.keep_permit(context.begun.lease)


def _reason_of(wait: Wait) -> str:
    """Return the reason of a wait as text."""
    if wait.reason == "budget":
        return f"calls under way have reserved the rest of the budget of the {wait.of}"
    return f"the {wait.reason} of the {wait.of} is used up"


async def _settle(context: StepContext, permit: Permit, cancelled: Usage) -> None:
    """Settle a permit, and send the steps that get one now. A failure of Redis is logged only: the reply must not be lost with it."""
    try:
        if not permit.is_sent:  # the provider's library did not report when its request was sent
            await permit.note_sent()
        if permit.is_counted:
            context.process.drop_permit(context.begun.lease)
            await asyncio.to_thread(_settle_limits, context, permit.reply.usage if permit.reply else cancelled)
        if permit.reply is None and cancelled.model_calls:
            await asyncio.to_thread(context.process.ledger.steps.record_usage, context.begun, cancelled)
    except (CantataError, RedisFailure) as error:
        context.process.drop_permit(context.begun.lease)
        log.warning("permit_not_settled", run=context.begun.run_id, step=context.begun.step_id, error=str(error))


def _settle_limits(context: StepContext, usage: Usage) -> None:
    process = context.process
    called = process.limiter.settle(
        context.begun.lease, tokens=usage.input_tokens + usage.output_tokens, usd=usage.cost_usd
    )
    process.send(permit_wakeups.wake(process.ledger, process.limiter, called))
    fault_points.at("budget-settled")


def _ask(context: StepContext, model: Model, input_tokens: int) -> Ask:
    max_tokens = model.params.get("max_tokens") or model.params.get("max_completion_tokens")
    output_tokens = int(max_tokens) if isinstance(max_tokens, int | float) else DEFAULT_ANSWER_TOKENS
    usd = (
        llm.max_usd(model.model, input_tokens, output_tokens)
        if context.definitions.limits.budgets != Budgets()
        else None
    )
    return Ask(
        holder=context.begun.lease,
        model=model.model,
        tokens=input_tokens + output_tokens,
        usd=usd,
        tenant=context.begun.tenant,
    )
