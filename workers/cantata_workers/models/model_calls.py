"""Model calls of a step: with permits of the shared limits, streamed to events, and with fallbacks; and the record of their prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Self, Unpack

import structlog

from cantata.errors import CantataError, ModelError, MustPause
from cantata.features.memory.cache import Payer
from cantata.flows.definitions import Model
from cantata.ledger.redis.connection import RedisFailure
from cantata.values import JsonValue
from cantata_workers.models import llm
from cantata_workers.models.dialects.conversation import Message
from cantata_workers.models.llm.caching import Options
from cantata_workers.models.permits import permit_for_call
from cantata_workers.process.step_context import StepContext

log = structlog.get_logger(__name__)

MIN_PAUSE_S = 1.0
"""A shorter wait that a provider asks for is one between two attempts, which are counted; else a call could be repeated without end."""

MIN_INTERVAL_S = (
    0.04  # pieces that come closer together are published as one: readers see no difference, Redis has less to do
)
MAX_MESSAGE_CHARS = 4000  # of one message of a recorded prompt
DIGEST_CHARS = 12
MAX_TOTAL_CHARS = 16_000  # of all of them: a run is kept for a day, beside many others


async def call_models(
    context: StepContext,
    models: Sequence[Model],
    messages: Sequence[Message],
    *,
    stream: bool = False,
    fresh: bool = False,
    fallback_on: Collection[str] = (),
    **options: Unpack[Options],
) -> llm.Reply:
    """Return the first model's reply, or that of a fallback.

    A fallback is asked if the model's error allows it (`failures.ERRORS`) and the step has no retries left or a retry would not help. It is
    asked at once if the provider asks for a pause longer than the model's `fallback_after_s`. Without a fallback left, such a pause is
    waited for, uncounted, if it ends before the run's deadline.

    Args:
        stream: Publish pieces of the reply as events.
        fresh: Do not answer from the cache.
        fallback_on: Codes of `failures.ERRORS` that ask a fallback only if they are named: refusal, content_filter.

    Raises MustWait, StepError for a budget, or ModelError: that of a single model as it is, for several one with all messages.
    """
    if context.answer_model is not None:
        recorded: llm.Reply = await context.answer_model(context, models, messages, options)
        return recorded
    errors: list[ModelError] = []
    pauses: list[MustPause] = []
    pause: MustPause | None
    failed = models[0]
    for number, model in enumerate(models):
        if errors:
            if not _may_answer(model, failed, errors[-1], fallback_on):
                continue
            await asyncio.to_thread(_note_fallback, context, model, errors[-1])
        try:
            reply = await _reply_of(context, model, messages, stream=stream, fresh=fresh, **options)
            return reply.model_copy(update={"request": digests_of(models[0], messages, options)})
        except MustPause as paused:  # by an earlier call, of any run
            pause, error = paused, ModelError(paused.message or str(paused), code="rate_limited", retryable=True)
        except ModelError as fault:
            pause, error = _pause_of(fault), fault
        is_last = number + 1 == len(models)
        is_short = pause is None or (pause.seconds <= model.fallback_after_s and not is_last)
        if not errors and is_short and error.retryable:
            if pause and pause.is_queued:
                raise pause
            if context.begun.failures < context.begun.spec.retries:
                raise error  # the step is retried with the first model, before any fallback is called
        errors.append(error)
        pauses += [pause] if pause else []
        failed = model
    error = errors[0] if len(errors) == 1 else _all_failed(errors)
    if pauses:
        raise await asyncio.to_thread(
            _wait_or_fail, context, min(pauses, key=lambda each: each.seconds), error
        ) from error
    raise error


def _pause_of(error: ModelError) -> MustPause | None:
    """Return the pause that a provider asked for; None if it is none, or so short that it is the delay of a counted retry."""
    if error.code != "rate_limited" or error.retry_after_s is None or error.retry_after_s < MIN_PAUSE_S:
        return None
    return MustPause(error.retry_after_s, str(error))


def _may_answer(model: Model, failed: Model, error: ModelError, fallback_on: Collection[str]) -> bool:
    """Return whether a fallback may answer what the model that failed could not, by the kind of the error."""
    kind = llm.ERRORS[error.code].fallback
    if kind == "larger":
        window, before = llm.context_window(model.model), llm.context_window(failed.model)
        return window is None or before is None or window > before
    return kind == "always" or (kind == "named" and error.code in fallback_on)


def _all_failed(errors: Sequence[ModelError]) -> ModelError:
    last = errors[-1]
    return ModelError(
        "; then ".join(map(str, errors)), code=last.code, retryable=last.retryable, retry_after_s=last.retry_after_s
    )


def _wait_or_fail(context: StepContext, pause: MustPause, error: ModelError) -> CantataError:
    """Return the pause to wait for; or the error, with the provider's words, if the run's deadline comes first.

    No call waits longer than `limits.max_pause_s`, then it asks the provider again.
    """
    seconds = min(pause.seconds, context.definitions.limits.max_pause_s)
    left_s = context.process.ledger.runs.seconds_left(context.begun.run_id)
    if left_s is not None and seconds >= left_s:
        pause_text = f"before the pause of {pause.seconds:,.0f} s that the provider asks for"
        return ModelError(f"{error}; the run ends in {max(0.0, left_s):.0f} s, {pause_text}", code="rate_limited")
    return MustPause(seconds, pause.message, ahead=pause.ahead, is_queued=pause.is_queued)


async def _reply_of(
    context: StepContext,
    model: Model,
    messages: Sequence[Message],
    *,
    stream: bool,
    fresh: bool,
    **options: Unpack[Options],
) -> llm.Reply:
    redis, tenant = context.process.ledger.redis, context.begun.tenant
    async with Deltas(context) as deltas:
        options["on_delta"] = deltas.add if stream else None
        if not fresh and (known := await llm.cached_reply(redis, tenant, model, messages, **options)):
            return known  # without a permit: it uses nothing of the limits
        async with permit_for_call(context, model, messages) as permit:

            def add(text: str) -> None:
                permit.streamed += len(text)
                deltas.add(text)

            options["on_delta"] = add if stream else None
            payer = Payer(context.process.ledger, tenant, context.definitions.limits.quota_of(tenant))
            permit.reply = await llm.complete_with_cache(redis, tenant, model, messages, payer=payer, **options)
            return permit.reply


def _note_fallback(context: StepContext, model: Model, error: ModelError) -> None:
    detail = {"model": model.model, "message": str(error)}
    log.info("model_fallback", model=model.model, code=error.code, error=str(error))
    context.process.ledger.runs.append_event(
        context.begun.run_id, "fallback", step_id=context.begun.step_id, detail=detail
    )


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
                log.warning(
                    "delta_publish_failed",
                    run=self._context.begun.run_id,
                    step=self._context.begun.step_id,
                    error=str(error),
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_ended.wait(), MIN_INTERVAL_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    return {
        "model": reply.model,
        "finish": reply.finish_reason,
        "request": dict(reply.request),
        "prompt": recorded_prompt(messages),
    }


def digests_of(model: Model, messages: Sequence[Message], options: Options) -> dict[str, str]:
    """Return the model that is asked first, and a digest of each part of the request: of a prompt only the beginning is recorded."""
    tools, schema = [tool.model_dump() for tool in options.get("tools", ())], options.get("schema")
    called = {"tools": tools, "choice": options.get("tool_choice")} if tools else None
    parts = {"messages": llm.without_reasoning(messages), "params": model.params, "tools": called, "schema": schema}
    return {"model": model.model} | {
        name: sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS]
        for name, part in parts.items()
        if part
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
