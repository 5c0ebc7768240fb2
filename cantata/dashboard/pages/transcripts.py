"""What was said between us and a model in a step, by what is recorded: its prompt, its replies, its calls and what came of them. Pure.

A turn of a model that is followed by another records a round: the reply, the calls in it, and what the model is told next. The last one
has the answer as its output. The prompt stands with the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cantata.dashboard.pages.page_views import CallView, MessageView
from cantata.dashboard.pages.truncate import Truncation
from cantata.models.values import JsonValue

PROMPT = "prompt"
"""Where the prompt stands in what is recorded with a step."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """How a step ended."""

    word: str
    output: JsonValue
    info: Mapping[str, JsonValue]
    is_round: bool = False
    """Whether its output is a round, and not an answer."""


def conversation_of(step_id: str, params: Mapping[str, JsonValue]) -> tuple[str, int | None]:
    """The first turn of the conversation that a step belongs to, and its number; None for the first."""
    number = int(cast(int, params.get("round") or 0))
    return (str(params["base"]), number) if number else (step_id, None)


def turns_of(base: str, known: Mapping[str, object]) -> list[str]:
    """The turns of a conversation: its first, and those that followed."""
    ids = [base]
    while (following := f"{base}/r{len(ids)}") in known:
        ids.append(following)
    return ids


def calls_in(step_id: str, turn: RecordedStep) -> list[str]:
    """The steps of the calls that a turn grew."""
    return [f"{step_id}/t{number}" for number, _ in enumerate(_calls(turn))]


def transcript(turns: Sequence[tuple[str, RecordedStep]], calls: Mapping[str, RecordedStep]) -> list[MessageView]:
    """The messages, oldest first. `turns` are turns of one conversation, `calls` the steps that their calls became."""
    messages: list[MessageView] = []
    for number, (step_id, turn) in enumerate(turns):
        messages += _prompt(turn.info.get(PROMPT)) if number == 0 else []
        if turn.word != "done":
            continue
        messages += _round(step_id, turn, calls) if turn.is_round else [_message("assistant", turn.output)]
    return messages


def _prompt(recorded: JsonValue) -> Iterator[MessageView]:
    for each in cast("list[dict[str, Any]]", recorded or []):
        noted = {"cut": bool(each.get("cut")), "omitted": int(each.get("omitted", 0))}
        yield _message(each["role"], each.get("text", "")).model_copy(update=noted)


def _calls(turn: RecordedStep) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", cast("dict[str, Any]", turn.output).get("calls") or []) if turn.is_round else []


def _round(step_id: str, turn: RecordedStep, calls: Mapping[str, RecordedStep]) -> Iterator[MessageView]:
    """A reply, what came of the calls in it, and what the model was told next."""
    asked, output = _calls(turn), cast("dict[str, Any]", turn.output)
    shown = [
        CallView(id=call.get("id") or f"call {i}", name=call["name"], arguments=_text(call.get("arguments")))
        for i, call in enumerate(asked, 1)
    ]
    yield _message("assistant", output.get("reply", "")).model_copy(update={"calls": shown})
    for number, (call, told) in enumerate(zip(asked, shown, strict=True)):
        came = calls.get(f"{step_id}/t{number}")
        if call.get("fault") or (came is not None and came.word in ("done", "failed")):
            yield _message("tool", _came(call, came)).model_copy(update={"call_id": told.id, "name": told.name})
    if output.get("note"):
        yield _message("user", output["note"])


def _came(call: Mapping[str, Any], came: RecordedStep | None) -> JsonValue:
    if call.get("fault"):
        return str(call["fault"])
    error = cast("dict[str, str] | None", came.info.get("error")) if came else None
    if error:
        return f"Error: {error['message']}"
    return came.output if came else None


def _message(role: Any, content: JsonValue) -> MessageView:
    truncation = Truncation()
    text = truncation.text(_text(content))
    return MessageView(role=role, text=text, cut=truncation.was_cut)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
