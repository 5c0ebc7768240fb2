"""Traces model calls, where traces are made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cantata.errors import ModelError
from cantata.observability import traces
from cantata.observability.traces import conventions
from cantata.workers.models.llm.library import load
from cantata.workers.models.llm.model_replies import Reply, ReplyBuilder

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class CallSpan:
    """What came of a call, to be told to its span."""

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    def reply(self, reply: Reply, draft: ReplyBuilder) -> None:
        """The model answered."""
        if self._span is None:
            return
        self._span.set_attributes(conventions.usage_attributes(reply.usage))
        self._span.set_attribute("gen_ai.response.finish_reasons", [reply.finish_reason])
        if draft.model:
            self._span.set_attribute("gen_ai.response.model", draft.model)
        if draft.id:
            self._span.set_attribute("gen_ai.response.id", draft.id)
        if conventions.records_content():
            self._span.set_attribute(
                "gen_ai.output.messages", conventions.output_messages(reply.text, reply.tool_calls, reply.finish_reason)
            )


_NO_SPAN = CallSpan()


@contextmanager
def traced(model: str, request: Mapping[str, Any], *, is_streamed: bool) -> Iterator[CallSpan]:
    """A span for one call of a model while the block lasts; nothing where no traces are made."""
    spans = traces.active()
    if spans is None:
        yield _NO_SPAN
        return
    name, attributes = conventions.chat_span(*_named(model, request), request, is_streamed=is_streamed)
    if conventions.records_content():
        attributes["gen_ai.input.messages"] = conventions.input_messages(request["messages"])
    with spans.call(name, attributes) as span:
        try:
            yield CallSpan(span)
        except ModelError as error:
            spans.fail(span, error.code, str(error))
            raise
        except asyncio.CancelledError:
            spans.fail(span, "cancelled", "the step was stopped")
            raise


def _named(model: str, request: Mapping[str, Any]) -> tuple[str, str]:
    """The provider of a model, and what that calls it."""
    try:
        found = load().get_llm_provider(model=model, api_base=request.get("api_base"))
    except Exception:  # noqa: BLE001  # its way to say that it knows none
        provider, _, name = model.partition("/")
        return provider, name or model
    return str(found[1]), str(found[0])
