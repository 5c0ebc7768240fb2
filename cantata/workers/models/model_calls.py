"""Model calls of a step: with permits of the shared limits, streamed to events, and with fallbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Unpack

import structlog

from cantata.errors import ModelError
from cantata.models.definitions import Model
from cantata.workers.models import llm
from cantata.workers.models.deltas import Deltas
from cantata.workers.models.dialects.conversation import Message
from cantata.workers.models.llm.caching import Options
from cantata.workers.models.permits import Permit, permit_for_call
from cantata.workers.runtime.step_context import StepContext

log = structlog.get_logger(__name__)


async def call_models(
    context: StepContext, models: Sequence[Model], messages: Sequence[Message],
    *, stream: bool = False, fresh: bool = False, **options: Unpack[Options],
) -> llm.Reply:  # fmt: skip
    """Return the first model's reply; that of a fallback, once the step has no retries left or a retry would not help.

    Args:
        stream: Publish pieces of the reply as events.
        fresh: Do not answer from the cache.

    Raises ModelError, MustWait, or StepError for a budget.
    """
    has_retries = context.begun.failures < context.begun.spec.retries
    errors: list[ModelError] = []

    async def call(model: Model) -> llm.Reply:
        if errors:
            await asyncio.to_thread(_note_fallback, context, model, errors[-1])
        redis = context.process.ledger.redis
        try:
            async with Deltas(context) as deltas:
                options["on_delta"] = deltas.add if stream else None
                if not fresh and (known := await llm.cached_reply(redis, model, messages, **options)):
                    return known  # without a permit: it uses nothing of the limits
                async with permit_for_call(context, model, messages) as permit:

                    def add(text: str, permit: Permit = permit) -> None:
                        permit.streamed += len(text)
                        deltas.add(text)

                    options["on_delta"] = add if stream else None
                    permit.reply = await llm.complete_with_cache(redis, model, messages, fresh=True, **options)
                    return permit.reply
        except ModelError as error:
            errors.append(error)
            if error.retryable and has_retries and model is models[0]:
                raise _RetryStep from error
            raise

    try:
        return await llm.first_reply(models, call)
    except _RetryStep:
        raise errors[0] from None


class _RetryStep(Exception):
    """The step is retried with the first model, before any fallback is called."""


def _note_fallback(context: StepContext, model: Model, error: ModelError) -> None:
    detail = {"model": model.model, "message": str(error)}
    log.info("model_fallback", model=model.model, code=error.code, error=str(error))
    context.process.ledger.runs.append_event(context.begun.run_id, "fallback", step_id=context.begun.step_id, detail=detail)
