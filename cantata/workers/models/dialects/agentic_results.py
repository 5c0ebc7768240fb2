"""The result of an agentic step, with its rounds, tool calls and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from cantata.models.values import JsonValue
from cantata.workers.models.dialects.conversation import truncated
from cantata.workers.models.dialects.rounds import HistoryMode, ModelRound, ToolResult, effective_result


def agentic_result(
    final_answer: JsonValue,
    rounds: Sequence[ModelRound],
    answers: Sequence[Sequence[ToolResult]],
    *,
    history_mode: HistoryMode,
    max_steps_reached: bool = False,
    warnings: Sequence[str] = (),
) -> dict[str, JsonValue]:
    """Return the fields of an AgenticStepResult; each of its steps is a round. Results are truncated as the model saw them."""
    steps = [_step(number, done, came) for number, (done, came) in enumerate(zip(rounds, answers, strict=True), 1)]
    errors = [error for done, came in zip(rounds, answers, strict=True) for error in _errors(done, came)]
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
        "errors": cast(JsonValue, errors),
        "warnings": list(warnings),
    }


def _step(number: int, done: ModelRound, answers: Sequence[ToolResult]) -> dict[str, JsonValue]:
    return {
        "step_number": number,
        "tool_calls": [
            _tool_call(call.name, call.arguments, effective_result(call, came)) for call, came in zip(done.calls, answers, strict=True)
        ],
        "tokens_used": _tokens(done),
        "execution_time_ms": done.ms,
        "clarification_attempts": int(bool(done.note) and not done.calls),
        "error": "; ".join(_errors(done, answers)) or None,
    }


def _tool_call(name: str, arguments: dict[str, JsonValue] | None, answer: ToolResult) -> JsonValue:
    call: dict[str, JsonValue] = {"name": name, "args": arguments}
    if answer.error:
        return {**call, "error": answer.error}
    text = answer.value if isinstance(answer.value, str) else json.dumps(answer.value, ensure_ascii=False)
    result = truncated(text)
    return {**call, "result": answer.value if result is text else result}


def _errors(done: ModelRound, answers: Sequence[ToolResult]) -> list[str]:
    came = [(call.name, effective_result(call, answer).error) for call, answer in zip(done.calls, answers, strict=True)]
    return [*done.errors, *(f"{name}: {error}" for name, error in came if error)]


def _tokens(done: ModelRound) -> int:
    return done.usage.input_tokens + done.usage.output_tokens
