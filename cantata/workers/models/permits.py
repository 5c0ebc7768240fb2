"""Takes permits for model calls from the limits that all workers share, and settles for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import structlog

from cantata import fault_points
from cantata.coordinator import permit_wakeups
from cantata.errors import CantataError, ModelError, MustWait, StepError
from cantata.models.definitions import Budgets, Model
from cantata.models.values import Usage
from cantata.observability import metrics
from cantata.state.limits.limiter import Ask, Exhausted, Wait
from cantata.state.redis.connection import RedisFailure
from cantata.workers.models import llm
from cantata.workers.models.dialects.conversation import Message
from cantata.workers.runtime.step_context import StepContext

log = structlog.get_logger(__name__)

CHARACTERS_PER_TOKEN = 4  # of English; the true count comes with the reply
FRESH_S = 0.5  # a request that leaves later than this after it was counted is counted anew; the limiter has a margin of a second
USUAL_ANSWER = 1024  # tokens that are reserved for an answer, where the parameters name no bound


class Permit:
    """Permit for one model call; `reply` tells what it used."""

    def __init__(self, context: StepContext, model: str, asked: int) -> None:
        """`asked` tokens are sent."""
        self.reply: llm.Reply | None = None
        self.streamed = 0
        """Characters of the reply that came so far."""
        self._model, self._asked = model, asked
        self._context = context
        self._counted_at = time.monotonic()  # or a little later, since the limiter was not asked yet
        self._has_left = False

    async def leaves(self) -> None:
        """Its request leaves now: it counts from now, unless it was counted only a moment ago."""
        self._has_left = True
        if time.monotonic() - self._counted_at > FRESH_S:
            await asyncio.to_thread(self._context.process.limiter.redate, self._context.begun.lease)

    def cut_off(self) -> Usage:
        """Return about what a call used that was stopped: providers bill it, and tell nothing more. Nothing if it never left."""
        if not self._has_left:
            return Usage()
        answered = -(-self.streamed // CHARACTERS_PER_TOKEN)
        cost = llm.max_usd(self._model, self._asked, answered)
        return Usage(input_tokens=self._asked, output_tokens=answered, cost_usd=cost, model_calls=1)

    async def is_over(self) -> None:
        """Where nobody told when its request left, it left by now."""
        if not self._has_left:
            await self.leaves()


@asynccontextmanager
async def permit_for_call(context: StepContext, model: Model, messages: Sequence[Message]) -> AsyncIterator[Permit]:
    """Hold permit for one call while the block lasts.

    Raises MustWait if the limits have no room now, StepError ('budget') if a budget has no room at all.
    """
    asked = len(json.dumps(list(messages), ensure_ascii=False)) // CHARACTERS_PER_TOKEN + 1
    ask, permit, stopped = _ask(context, model, asked), Permit(context, model.model, asked), Usage()
    match await asyncio.to_thread(context.process.limiter.take, ask, context.definitions.limits):
        case Wait() as wait:
            metrics.record_limit_wait(model.model, wait.reason, wait.seconds)
            raise MustWait(wait.seconds, _told(wait), ahead=wait.ahead)
        case Exhausted() as exhausted:
            metrics.record_budget_refusal(exhausted.budget)
            raise StepError(str(exhausted), code="budget")
    fault_points.at("budget-reserved")
    context.process.keep_permit(context.begun.lease)
    try:
        with llm.on_request_start(permit.leaves):
            yield permit
    except ModelError as error:
        if error.code == "rate_limited" and error.retry_after_s:
            await asyncio.to_thread(context.process.limiter.pause, model.model, error.retry_after_s)
        raise
    except asyncio.CancelledError:
        stopped = permit.cut_off()
        raise
    finally:
        await asyncio.shield(_settle(context, ask, permit, stopped))


def _told(wait: Wait) -> str:
    """Why a call waits, in words."""
    if wait.reason == "pause":
        return "the model's provider asked for a pause"
    if wait.reason == "budget":
        return f"what calls under way may spend is all that is left of the budget of the {wait.of}"
    return f"the {wait.reason} of the {wait.of} is used up"


async def _settle(context: StepContext, ask: Ask, permit: Permit, stopped: Usage) -> None:
    """Tell what a call used, and send the steps that may go by that. A reply is worth more than its account: it is not lost with it."""
    try:
        await permit.is_over()
        context.process.drop_permit(context.begun.lease)
        await asyncio.to_thread(_pay, context, ask, permit.reply.usage if permit.reply else stopped)
        if permit.reply is None and stopped.model_calls:
            await asyncio.to_thread(context.process.ledger.used, context.begun, stopped)
    except (CantataError, RedisFailure) as error:
        context.process.drop_permit(context.begun.lease)
        log.warning("permit_not_settled", run=context.begun.run_id, step=context.begun.step_id, error=str(error))


def _pay(context: StepContext, ask: Ask, usage: Usage) -> None:
    process = context.process
    called = process.limiter.settle(ask.holder, tokens=usage.input_tokens + usage.output_tokens, usd=usage.cost_usd)
    process.send(permit_wakeups.wake(process.ledger, process.limiter, called))
    fault_points.at("budget-settled")


def _ask(context: StepContext, model: Model, asked: int) -> Ask:
    bound = model.params.get("max_tokens") or model.params.get("max_completion_tokens")
    answer = int(cast(int, bound)) if isinstance(bound, int | float) else USUAL_ANSWER
    usd = llm.max_usd(model.model, asked, answer) if context.definitions.limits.budgets != Budgets() else None
    return Ask(holder=context.begun.lease, model=model.model, tokens=asked + answer, usd=usd, tenant=context.begun.tenant)
