"""Model calls of a step: with permits of the shared limits, streamed to events, and with fallbacks; and the record of their prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Self, Unpack

import structlog

from cantata.errors import CantataError, ModelError
from cantata.models.definitions import Model
from cantata.models.values import JsonValue
from cantata.state.redis.connection import RedisFailure
from cantata.workers.models import llm
from cantata.workers.models.dialects.conversation import Message
from cantata.workers.models.llm.caching import Options
from cantata.workers.models.permits import permit_for_call
from cantata.workers.runtime.step_context import StepContext

log = structlog.get_logger(__name__)

FALLBACK_CODES = frozenset(
    {"rate_limited", "model_unavailable", "model_timeout", "model_auth", "model_unknown", "model_empty", "model_error"}
)
"""Error codes after which another model may succeed with the same request."""

MIN_INTERVAL_S = 0.04  # pieces that come closer together are published as one: readers see no difference, Redis has less to do
MAX_MESSAGE_CHARS = 4000  # of one message of a recorded prompt
DIGEST_CHARS = 12
MAX_TOTAL_CHARS = 16_000  # of all of them: a run is kept for a day, beside many others


async def call_models(
    context: StepContext, models: Sequence[Model], messages: Sequence[Message],
    *, stream: bool = False, fresh: bool = False, **options: Unpack[Options],
) -> llm.Reply:  # fmt: skip
    """Return the first model's reply; that of a fallback, once the step has no retries left or a retry would not help.

    Args:
        stream: Publish pieces of the reply as events.
        fresh: Do not answer from the cache.

    Raises MustWait, StepError for a budget, or ModelError: that of a single model as it is, for several one with all messages. After an
    error of the request itself no fallback is called.
    """
    if context.answer_model is not None:
        recorded: llm.Reply = await context.answer_model(context, models, messages, options)
        return recorded
    errors: list[ModelError] = []
    for model in models:
        if errors:
            await asyncio.to_thread(_note_fallback, context, model, errors[-1])
        try:
            reply = await _reply_of(context, model, messages, stream=stream, fresh=fresh, **options)
            return reply.model_copy(update={"request": digests_of(models[0], messages, options)})
        except ModelError as error:
            if not errors and error.retryable and context.begun.failures < context.begun.spec.retries:
                raise  # the step is retried with the first model, before any fallback is called
            errors.append(error)
            if error.code not in FALLBACK_CODES:
                break
    last = errors[-1]
    if len(errors) == 1:
        raise last
    raise ModelError("; then ".join(map(str, errors)), code=last.code, retryable=last.retryable, retry_after_s=last.retry_after_s)


async def _reply_of(
    context: StepContext, model: Model, messages: Sequence[Message], *, stream: bool, fresh: bool, **options: Unpack[Options]
) -> llm.Reply:
    redis = context.process.ledger.redis
    async with Deltas(context) as deltas:
        options["on_delta"] = deltas.add if stream else None
        if not fresh and (known := await llm.cached_reply(redis, model, messages, **options)):
            return known  # without a permit: it uses nothing of the limits
        async with permit_for_call(context, model, messages) as permit:

            def add(text: str) -> None:
                permit.streamed += len(text)
                deltas.add(text)

            options["on_delta"] = add if stream else None
            permit.reply = await llm.complete_with_cache(redis, model, messages, **options)
            return permit.reply


def _note_fallback(context: StepContext, model: Model, error: ModelError) -> None:
    detail = {"model": model.model, "message": str(error)}
    log.info("model_fallback", model=model.model, code=error.code, error=str(error))
    context.process.ledger.runs.append_event(context.begun.run_id, "fallback", step_id=context.begun.step_id, detail=detail)


class Deltas:
    """The pieces of one reply, published in order.

    When the block ends, all pieces are published; if the reply failed, no more will be.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._text = ""
        self._is_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Add a piece to be published."""
        self._text += text
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while self._text:
            text, self._text = self._text, ""
            try:
                await asyncio.to_thread(self._context.process.ledger.steps.append_delta, self._context.begun, text)
            except (CantataError, RedisFailure) as error:  # the reply itself will be recorded
                log.warning("delta_publish_failed", run=self._context.begun.run_id, step=self._context.begun.step_id, error=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_ended.wait(), MIN_INTERVAL_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is None:
            return
        if kind is not None and not issubclass(kind, Exception):  # cancelled
            self._task.cancel()
            return
        if kind is not None:
            self._text = ""
        self._is_ended.set()
        await self._task


def reply_detail(reply: llm.Reply, messages: Sequence[Message]) -> dict[str, JsonValue]:
    """Return what is recorded of a model call beside its reply."""
    return {"model": reply.model, "finish": reply.finish_reason, "request": dict(reply.request), "prompt": recorded_prompt(messages)}


def digests_of(model: Model, messages: Sequence[Message], options: Options) -> dict[str, str]:
    """Return the model that is asked first, and a digest of each part of the request: of a prompt only the beginning is recorded."""
    tools, schema = [tool.model_dump() for tool in options.get("tools", ())], options.get("schema")
    called = {"tools": tools, "choice": options.get("tool_choice")} if tools else None
    parts = {"messages": [*messages], "params": model.params, "tools": called, "schema": schema}
    return {"model": model.model} | {
        name: sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS] for name, part in parts.items() if part
    }


def recorded_prompt(messages: Sequence[Message]) -> list[JsonValue]:
    """Return a prompt for people to read, oldest message first, as {role, text}: long ones truncated, of many the first and the newest.

    `cut` marks a truncated text; `omitted` is the number of messages before this one that are not recorded.
    """
    left = MAX_TOTAL_CHARS
    kept: list[dict[str, JsonValue]] = []
    rest = list(messages)
    first = _entry(rest.pop(0)) if rest else None
    left -= len(str(first["text"])) if first else 0
    while rest:
        entry = _entry(rest[-1])
        left -= len(str(entry["text"]))
        if left < 0 and kept:
            break
        kept.insert(0, entry)
        rest.pop()
    if rest:
        kept[0]["omitted"] = len(rest)
    return [*([first] if first else []), *kept]


def _entry(message: Message) -> dict[str, JsonValue]:
    text = str(message.get("content") or "")
    entry: dict[str, JsonValue] = {"role": message["role"], "text": text[:MAX_MESSAGE_CHARS]}
    return entry if len(text) <= MAX_MESSAGE_CHARS else {**entry, "cut": True}
