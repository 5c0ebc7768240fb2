"""Rebuilds the conversation with a model from the rounds of a step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from cantata.models.values import JsonValue
from cantata.workers.models.dialects.call_parsing import ParsedCall, calls_of
from cantata.workers.models.dialects.rounds import HistoryMode, ModelRound, ToolResult, effective_result

Message = Mapping[str, JsonValue]

RESULT_LIMIT = 20_000
"""Characters of one result that a model is shown: about 5,000 tokens, so that a dozen of them fit every model now in use."""


def conversation(
    base: Sequence[Message],
    rounds: Sequence[ModelRound],
    answers: Sequence[Sequence[ToolResult]],
    *,
    mode: HistoryMode = "minimal",
    limit: int = RESULT_LIMIT,
) -> list[Message]:
    """The messages before the rounds, and those that the rounds became; `answers` has a list for each round, an answer for each call.

    minimal: every call and its result, and what the last round was told; progressive: also the texts that came with native calls;
    kitchen_sink: also the replies without calls and the notes of earlier rounds. A call in JSON is a text, so it is always there.
    """
    messages = list(base)
    for number, (done, came) in enumerate(zip(rounds, answers, strict=True), 1):
        is_told = mode == "kitchen_sink" or number == len(rounds)
        if done.calls or is_told:
            messages += exchange(done, came, with_text=mode != "minimal", limit=limit)
        if done.note and is_told:
            messages.append({"role": "user", "content": done.note})
    return messages


def exchange(done: ModelRound, answers: Sequence[ToolResult], *, with_text: bool = True, limit: int = RESULT_LIMIT) -> list[Message]:
    """A reply, and what came back for its calls, an answer for each in their order.

    Native calls are answered by a `tool` message each, calls in JSON by one `user` message. Without `with_text`, the text of a reply is
    left out where it only came along with native calls.
    """
    settled_answers = [(call, effective_result(call, answer)) for call, answer in zip(done.calls, answers, strict=True)]
    native = [each for each in settled_answers if each[0].dialect == "native"]
    spoken = [each for each in settled_answers if each[0].dialect == "json"]
    text = done.reply if with_text or spoken or not native else ""
    return [
        *_reply(text, [call for call, _ in native]),
        *(_tool_message(call, answer, limit) for call, answer in native),
        *_spoken_results(done.reply, spoken, limit),
    ]


def _reply(text: str, native: Sequence[ParsedCall]) -> Iterator[Message]:
    """The model's own message; none if it said nothing, for some providers refuse an empty one."""
    if native:
        yield {"role": "assistant", "content": text or None, "tool_calls": [_echo(call) for call in native]}
    elif text.strip():
        yield {"role": "assistant", "content": text}


def _echo(call: ParsedCall) -> JsonValue:
    """The call as OpenAI writes it; arguments that could not be read are shown in its fault, for some providers refuse them here."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments or {})}}


def _tool_message(call: ParsedCall, answer: ToolResult, limit: int) -> Message:
    if answer.error:
        content = _json({"error": cut(answer.error, limit)})
    else:
        content = cut(answer.value if isinstance(answer.value, str) else _json(answer.value), limit)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _spoken_results(reply: str, spoken: Sequence[tuple[ParsedCall, ToolResult]], limit: int) -> Iterator[Message]:
    """What was said, and under it the results; each has its tool's name if there are several. Source: LangSwarm."""
    if spoken:
        response = calls_of(reply).response
        said = response if isinstance(response, str) else _json(response)
        results = (_spoken_result(f" ({call.name})" if len(spoken) > 1 else "", answer, limit) for call, answer in spoken)
        yield {"role": "user", "content": "\n\n".join(part for part in (said, *results) if part)}


def _spoken_result(of: str, answer: ToolResult, limit: int) -> str:
    if answer.error:
        return f"Tool error{of}: {cut(answer.error, limit)}"
    return f"Tool result{of}: {cut(_json(answer.value), limit)}"


def cut(text: str, limit: int = RESULT_LIMIT) -> str:
    """The text, or so many characters of it and a note that tells how long it is."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut here: these are the first {limit:,} of {len(text):,} characters]"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
