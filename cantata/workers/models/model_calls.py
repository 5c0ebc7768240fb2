"""Asks the models of a step: with permit of the shared limits, telling events what comes, and others when one fails for good."""

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


async def ask(
    context: StepContext, models: Sequence[Model], messages: Sequence[Message],
    *, stream: bool = False, fresh: bool = False, **options: Unpack[Options],
) -> llm.Reply:  # fmt: skip
    """The first model's reply; that of another, once the step has no try left or none would help.

    With `stream`, pieces of the reply become events. Raises ModelError, MustWait, or StepError for a budget.
    """
    left = context.begun.failures < context.begun.spec.retries
    errors: list[ModelError] = []

    async def asked(model: Model) -> llm.Reply:
        if errors:
            await asyncio.to_thread(_tell_of_fallback, context, model, errors[-1])
        redis = context.process.ledger.redis
        try:
            async with Deltas(context) as deltas:
                options["on_delta"] = deltas.add if stream else None
                if not fresh and (known := await llm.recalled(redis, model, messages, **options)):
                    return known  # it takes nothing of the limits
                async with permit_for_call(context, model, messages) as permit:

                    def add(text: str, permit: Permit = permit) -> None:
                        permit.streamed += len(text)
                        deltas.add(text)

                    options["on_delta"] = add if stream else None
                    permit.reply = await llm.cached(redis, model, messages, fresh=True, **options)
                    return permit.reply
        except ModelError as error:
            errors.append(error)
            if error.retryable and left and model is models[0]:
                raise _AskAgain from error
            raise

    try:
        return await llm.ask(models, asked)
    except _AskAgain:
        raise errors[0] from None


class _AskAgain(Exception):
    """The first model is asked again later, before any other."""


def _tell_of_fallback(context: StepContext, model: Model, error: ModelError) -> None:
    detail = {"model": model.model, "message": str(error)}
    log.info("model_fallback", model=model.model, code=error.code, error=str(error))
    context.process.ledger.note(context.begun.run_id, "fallback", step_id=context.begun.step_id, detail=detail)
