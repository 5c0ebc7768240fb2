"""The conversation with a model, rebuilt from the rounds of a step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from cantata.models.values import JsonValue
from cantata.workers.models.dialects.call_parsing import ParsedCall, calls_of
from cantata.workers.models.dialects.rounds import HistoryMode, ModelRound, ToolResult, effective_result

Message = Mapping[str, JsonValue]

RESULT_LIMIT = 20_000
"""Characters of one result that a model sees: about 5,000 tokens, so that a dozen of them fit every model now in use."""


def conversation(
    base: Sequence[Message],
    rounds: Sequence[ModelRound],
    answers: Sequence[Sequence[ToolResult]],
    *,
    mode: HistoryMode = "minimal",
    limit: int = RESULT_LIMIT,
) -> list[Message]:
    """Return the messages before the rounds and those of the rounds; `answers` has a list for each round, a result for each call.

    minimal: every call and its result, and the note of the last round; progressive: also the texts beside native calls;
    kitchen_sink: also the replies without calls and the notes of earlier rounds. A call in JSON is text, so it is always included.
    """
    messages = list(base)
    for number, (done, came) in enumerate(zip(rounds, answers, strict=True), 1):
        is_complete = mode == "kitchen_sink" or number == len(rounds)
        if done.calls or is_complete:
            messages += exchange(done, came, with_text=mode != "minimal", limit=limit)
        if done.note and is_complete:
            messages.append({"role": "user", "content": done.note})
    return messages


def exchange(done: ModelRound, answers: Sequence[ToolResult], *, with_text: bool = True, limit: int = RESULT_LIMIT) -> list[Message]:
    """Return a reply and the results of its calls as messages.

    Native calls are answered by a `tool` message each, calls in JSON by one `user` message. Without `with_text`, the text beside native
    calls is left out.
    """
    results = [(call, effective_result(call, answer)) for call, answer in zip(done.calls, answers, strict=True)]
    native = [each for each in results if each[0].dialect == "native"]
    in_json = [each for each in results if each[0].dialect == "json"]
    text = done.reply if with_text or in_json or not native else ""
    return [
        *_reply(text, [call for call, _ in native]),
        *(_tool_message(call, answer, limit) for call, answer in native),
        *_json_results(done.reply, in_json, limit),
    ]


def _reply(text: str, native: Sequence[ParsedCall]) -> Iterator[Message]:
    """Yield the model's own message; none if it is empty, since some providers refuse that."""
    if native:
        yield {"role": "assistant", "content": text or None, "tool_calls": [_wire_call(call) for call in native]}
    elif text.strip():
        yield {"role": "assistant", "content": text}


def _wire_call(call: ParsedCall) -> JsonValue:
    """Return the call in OpenAI's format. Unreadable arguments are quoted in its fault only, since some providers refuse them here."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments or {})}}


def _tool_message(call: ParsedCall, answer: ToolResult, limit: int) -> Message:
    if answer.error:
        content = _json({"error": truncated(answer.error, limit)})
    else:
        content = truncated(answer.value if isinstance(answer.value, str) else _json(answer.value), limit)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _json_results(reply: str, in_json: Sequence[tuple[ParsedCall, ToolResult]], limit: int) -> Iterator[Message]:
    """Yield the response of a reply with the results below it, each with its tool's name if there are several."""
    if in_json:
        response = calls_of(reply).response
        text = response if isinstance(response, str) else _json(response)
        results = (_json_result(f" ({call.name})" if len(in_json) > 1 else "", answer, limit) for call, answer in in_json)
        yield {"role": "user", "content": "\n\n".join(part for part in (text, *results) if part)}


def _json_result(of: str, answer: ToolResult, limit: int) -> str:
    if answer.error:
        return f"Tool error{of}: {truncated(answer.error, limit)}"
    return f"Tool result{of}: {truncated(_json(answer.value), limit)}"


def truncated(text: str, limit: int = RESULT_LIMIT) -> str:
    """Return the text; if it is longer than the limit, its beginning and a note of its length."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut here: these are the first {limit:,} of {len(text):,} characters]"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
