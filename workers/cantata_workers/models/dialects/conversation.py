"""Rounds of the agent loop, and what is made of them: the conversation with the model, and the result of an agentic step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import Field

from cantata.errors import StepError
from cantata.values import JsonValue, Usage, Value, as_text
from cantata_workers.models.dialects.call_parsing import ParsedCall, calls_of
from cantata_workers.models.dialects.reasoning import KEY, Reasoning

HistoryMode = Literal["minimal", "progressive", "kitchen_sink"]
Message = Mapping[str, JsonValue]

RESULT_LIMIT = 20_000
"""Characters of one result that a model sees: about 5,000 tokens, so that a dozen of them fit every model now in use."""

ROUNDS_EXHAUSTED = (
    "You have used all {} rounds of tool calls, and no more can follow. Give your final answer now, from what you know."
)
STEPS_EXHAUSTED = "You have used all {} steps. Give your final answer now, from what you know, without calling a tool."
EMPTY_REPLY = "Your reply was empty. Call a tool, or give your final answer."
CORRECTION = "Your reply cannot be used: {}\nReply again in full, with this corrected."


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call: a value, or an error for the model."""

    value: JsonValue = None
    error: str = ""


class ModelRound(Value):
    """One round of a model within its instruction. The results of its calls are the outputs of their own steps."""

    reply: str = Field(default="", description="the text of the reply, unchanged")
    calls: tuple[ParsedCall, ...] = Field(default=(), description="the tool calls, in order")
    kind: Literal["calls", "nudge", "correction"] = Field(default="calls", description="why the model is called again")
    note: str = Field(
        default="",
        description="the next message to the model: after an empty reply, a correction, a limit that is reached",
    )
    ms: float = Field(default=0.0, description="the duration of the model call")
    usage: Usage = Field(default_factory=Usage, description="the usage of the model call")
    reasoning: Reasoning | None = Field(
        default=None,
        exclude=True,
        description="recorded beside the round, not in it: workers of an older version read rounds too",
    )
    memory: dict[str, str | None] = Field(
        default_factory=dict,
        description="in the first round: the memories that placeholders of the prompt name, kept for later rounds",
    )

    @classmethod
    def read(cls, output: str | None, info: Mapping[str, JsonValue]) -> ModelRound:
        """Return a recorded round, with the reasoning that is recorded beside it. Raises StepError if it is not recorded."""
        if not output:
            raise StepError("a round of this instruction before this one is not recorded", code="round_missing")
        thought = Reasoning.model_validate(info["reasoning"]) if info.get("reasoning") else None
        return cls.model_validate(json.loads(output)).model_copy(update={"reasoning": thought})

    def to_json(self) -> JsonValue:
        """Return the round as it is stored."""
        return cast(JsonValue, self.model_dump(mode="json", exclude_defaults=True))

    def results(self, answers: Sequence[ToolResult]) -> list[tuple[ParsedCall, ToolResult]]:
        """Return each call with its result; for one that could not be made, its fault."""
        return [
            (call, ToolResult(error=call.fault) if call.fault else came)
            for call, came in zip(self.calls, answers, strict=True)
        ]


def conversation(
    base: Sequence[Message],
    rounds: Sequence[ModelRound],
    answers: Sequence[Sequence[ToolResult]],
    mode: HistoryMode = "minimal",
) -> list[Message]:
    """Return the messages before the rounds and those of the rounds; `answers` has a list for each round, a result for each call.

    minimal and progressive: every call with the text beside it and its result, and the note of the last round; kitchen_sink: also the
    replies without calls and the notes of earlier rounds.
    """
    messages = list(base)
    for number, (done, came) in enumerate(zip(rounds, answers, strict=True), 1):
        is_complete = mode == "kitchen_sink" or number == len(rounds)
        if done.calls or is_complete:
            messages += exchange(done, came)
        if done.note and is_complete:
            messages.append({"role": "user", "content": done.note})
    return messages


def exchange(done: ModelRound, answers: Sequence[ToolResult]) -> list[Message]:
    """Return a reply and the results of its calls as messages.

    Native calls are answered by a `tool` message each, calls in JSON by one `user` message. An empty reply has no message of its own,
    since some providers refuse that.
    """
    results = done.results(answers)
    native = [each for each in results if each[0].dialect == "native"]
    in_json = [each for each in results if each[0].dialect == "json"]
    messages: list[Message] = []
    if native:
        thought: Message = {KEY: done.reasoning.model_dump(mode="json")} if done.reasoning else {}
        calls = [_wire_call(call) for call, _ in native]
        messages.append({"role": "assistant", "content": done.reply or None, "tool_calls": calls, **thought})
    elif done.reply.strip():
        messages.append({"role": "assistant", "content": done.reply})
    messages += (_tool_message(call, answer) for call, answer in native)
    return [*messages, *_json_results(done.reply, in_json)]


def _wire_call(call: ParsedCall) -> JsonValue:
    """Return the call in OpenAI's format. Unreadable arguments are quoted in its fault only, since some providers refuse them here."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": _json(call.arguments or {})},
    }


def _tool_message(call: ParsedCall, answer: ToolResult) -> Message:
    if answer.error:
        content = _json({"error": truncated(answer.error)})
    else:
        content = truncated(answer.value if isinstance(answer.value, str) else _json(answer.value))
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _json_results(reply: str, in_json: Sequence[tuple[ParsedCall, ToolResult]]) -> Iterator[Message]:
    """Yield the response of a reply with the results below it, each with its tool's name if there are several."""
    if in_json:
        response = calls_of(reply).response
        text = response if isinstance(response, str) else _json(response)
        results = (_json_result(f" ({call.name})" if len(in_json) > 1 else "", answer) for call, answer in in_json)
        yield {"role": "user", "content": "\n\n".join(part for part in (text, *results) if part)}


def _json_result(of: str, answer: ToolResult) -> str:
    return (
        f"Tool error{of}: {truncated(answer.error)}"
        if answer.error
        else f"Tool result{of}: {truncated(_json(answer.value))}"
    )


def truncated(text: str) -> str:
    """Return the text; if it is longer than RESULT_LIMIT, its beginning and a note of its length."""
    if len(text) <= RESULT_LIMIT:
        return text
    return f"{text[:RESULT_LIMIT]}\n[cut here: these are the first {RESULT_LIMIT:,} of {len(text):,} characters]"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- the result of an agentic step ----------------------------------------------------------------------------------


def agentic_result(
    final_answer: JsonValue,
    rounds: Sequence[ModelRound],
    answers: Sequence[Sequence[ToolResult]],
    history_mode: HistoryMode,
    *,
    max_steps_reached: bool = False,
) -> dict[str, JsonValue]:
    """Return the fields of an AgenticStepResult; each of its steps is a round. Results are truncated as the model saw them."""
    steps = [_step(number, done, came) for number, (done, came) in enumerate(zip(rounds, answers, strict=True), 1)]
    return {
        "final_answer": final_answer,
        "total_steps": len(rounds),
        "max_steps_reached": max_steps_reached,
        "objective_achieved": final_answer is not None and not max_steps_reached,
        "steps": cast(JsonValue, steps),
        "total_tools_called": sum(len(done.calls) for done in rounds),
        "total_tokens_used": sum(map(_tokens, rounds)),
        "total_execution_time_ms": sum(done.ms for done in rounds),
        "history_mode": history_mode,
        "errors": [error for done, came in zip(rounds, answers, strict=True) for error in _errors(done, came)],
        "warnings": [],
    }


def _step(number: int, done: ModelRound, answers: Sequence[ToolResult]) -> dict[str, JsonValue]:
    return {
        "step_number": number,
        "tool_calls": [_tool_call(call, result) for call, result in done.results(answers)],
        "tokens_used": _tokens(done),
        "execution_time_ms": done.ms,
        "clarification_attempts": int(bool(done.note) and not done.calls),
        "error": "; ".join(_errors(done, answers)) or None,
    }


def _tool_call(call: ParsedCall, result: ToolResult) -> JsonValue:
    named: dict[str, JsonValue] = {"name": call.name, "args": call.arguments}
    if result.error:
        return {**named, "error": result.error}
    text = as_text(result.value)
    return {**named, "result": result.value if len(text) <= RESULT_LIMIT else truncated(text)}


def _errors(done: ModelRound, answers: Sequence[ToolResult]) -> list[str]:
    return [f"{call.name}: {result.error}" for call, result in done.results(answers) if result.error]


def _tokens(done: ModelRound) -> int:
    return done.usage.input_tokens + done.usage.output_tokens
