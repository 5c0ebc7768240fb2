"""Metrics and trace spans of model calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

from cantata.errors import ModelError
from cantata.operation import metrics, traces
from cantata.operation.traces import conventions
from cantata_workers.models.llm.library import load
from cantata_workers.models.llm.model_replies import Reply, ReplyBuilder

if TYPE_CHECKING:
    from opentelemetry.trace import Span


P = ParamSpec("P")


def measured(
    call: Callable[Concatenate[str, P], Coroutine[Any, Any, Reply]],
) -> Callable[Concatenate[str, P], Coroutine[Any, Any, Reply]]:
    """Decorate a function that calls the model named first: record its duration, outcome and usage in the metrics.

    It knows the options `tenant`, and `on_delta` of a streamed call.
    """

    @wraps(call)
    async def measured_call(model: str, /, *args: P.args, **more: P.kwargs) -> Reply:
        started_at, outcome, usage = time.perf_counter(), "error", None
        if on_delta := more.get("on_delta"):
            more["on_delta"] = _timed(model, cast("Callable[[str], object]", on_delta), started_at)
        try:
            reply = await call(model, *args, **more)
            outcome, usage = "ok", reply.usage
        except ModelError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        else:
            return reply
        finally:
            took_s, tenant = time.perf_counter() - started_at, str(more.get("tenant") or "")
            metrics.record_model_call(model, outcome, tenant, took_s, usage)

    return measured_call


def _timed(model: str, on_delta: Callable[[str], object], started_at: float) -> Callable[[str], object]:
    """Return a receiver of pieces of text that records when the first one came."""
    is_first = True

    def receive(text: str) -> object:
        nonlocal is_first
        if is_first:
            is_first = False
            metrics.record_first_token(model, time.perf_counter() - started_at)
        return on_delta(text)

    return receive


def set_reply(span: Span | None, reply: Reply, builder: ReplyBuilder) -> None:
    """Set the attributes of the model's reply on the span of a call."""
    if span is None:
        return
    span.set_attributes(conventions.usage_attributes(reply.usage))
    found = {"gen_ai.response.model": builder.model, "gen_ai.response.id": builder.id}
    span.set_attributes({name: value for name, value in found.items() if value})
    span.set_attribute("gen_ai.response.finish_reasons", [reply.finish_reason])
    if conventions.records_content():
        span.set_attribute(
            "gen_ai.output.messages", conventions.output_messages(reply.text, reply.tool_calls, reply.finish_reason)
        )


@contextmanager
def traced(model: str, request: Mapping[str, Any], *, is_streamed: bool) -> Iterator[Span | None]:
    """Make a span for one model call while the block lasts; none if the process makes no traces."""
    spans = traces.active()
    if spans is None:
        yield None
        return
    name, attributes = conventions.chat_span(*_provider_and_name(model, request), request, is_streamed=is_streamed)
    if conventions.records_content():
        attributes["gen_ai.input.messages"] = conventions.input_messages(request["messages"])
    with spans.call(name, attributes) as span:
        try:
            yield span
        except ModelError as error:
            spans.fail(span, error.code, str(error))
            raise
        except asyncio.CancelledError:
            spans.fail(span, "cancelled", "the step was stopped")
            raise


def _provider_and_name(model: str, request: Mapping[str, Any]) -> tuple[str, str]:
    """Return the provider of a model, and the provider's name of it."""
    try:
        found = load().get_llm_provider(model=model, api_base=request.get("api_base"))
    except Exception:  # noqa: BLE001  # LiteLLM raises it for a model without a known provider
        provider, _, name = model.partition("/")
        return provider, name or model
    return str(found[1]), str(found[0])
