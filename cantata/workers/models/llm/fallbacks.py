"""Asks one model after the other, until one answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from cantata.errors import ModelError
from cantata.models.definitions import Model
from cantata.workers.models.llm.model_replies import Reply

NOT_THE_REQUESTS_FAULT = frozenset(
    {"rate_limited", "model_unavailable", "model_timeout", "model_auth", "model_unknown", "model_empty", "model_error"}
)
"""Error codes after which another model may do better with the same request."""


async def ask(models: Sequence[Model], call: Callable[[Model], Awaitable[Reply]]) -> Reply:
    """The reply of the first model that `call` gets one from; the reply's `model` tells which.

    Raises the ModelError of a single model as it is; of several, one that tells what each said. An error that is the request's own
    fault is not tried with others.
    """
    errors: list[ModelError] = []
    for model in models:
        try:
            return await call(model)
        except ModelError as error:
            errors.append(error)
            if error.code not in NOT_THE_REQUESTS_FAULT:
                break
    raise errors[0] if len(errors) == 1 else _all(errors)


def _all(errors: Sequence[ModelError]) -> ModelError:
    last = errors[-1]
    said = "; then ".join(str(error) for error in errors)
    return ModelError(said, code=last.code, retryable=last.retryable, retry_after_s=last.retry_after_s)
