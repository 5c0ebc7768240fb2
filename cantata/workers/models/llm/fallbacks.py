"""Fallbacks: models are called one after the other, until one replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from cantata.errors import ModelError
from cantata.models.definitions import Model
from cantata.workers.models.llm.model_replies import Reply

FALLBACK_CODES = frozenset(
    {"rate_limited", "model_unavailable", "model_timeout", "model_auth", "model_unknown", "model_empty", "model_error"}
)
"""Error codes after which another model may succeed with the same request."""


async def first_reply(models: Sequence[Model], call: Callable[[Model], Awaitable[Reply]]) -> Reply:
    """Return the reply of the first model for which `call` returns one; the reply's `model` names it.

    Raises the ModelError of a single model as it is, and one with all messages for several. After an error of the request itself no
    fallback is called.
    """
    errors: list[ModelError] = []
    for model in models:
        try:
            return await call(model)
        except ModelError as error:
            errors.append(error)
            if error.code not in FALLBACK_CODES:
                break
    raise errors[0] if len(errors) == 1 else _combined(errors)


def _combined(errors: Sequence[ModelError]) -> ModelError:
    last = errors[-1]
    message = "; then ".join(str(error) for error in errors)
    return ModelError(message, code=last.code, retryable=last.retryable, retry_after_s=last.retry_after_s)
