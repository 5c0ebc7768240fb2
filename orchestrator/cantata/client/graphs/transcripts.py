"""Messages of a conversation with a model, from the records of its steps: prompt, replies, tool calls and their results. Pure.

A model turn that is followed by another records a round: the reply, its tool calls, and the next message to the model. The last one has
the answer as its output. The prompt is recorded with the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cantata.client.graphs.page_views import CallView, MessageView
from cantata.client.graphs.truncate import Truncation
from cantata.values import JsonValue, as_text

PROMPT = "prompt"
"""The field of a step's info with the prompt."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """State, output and info of a step."""

    state: str
    output: JsonValue
    info: Mapping[str, JsonValue]
    is_round: bool = False
    """True if the output is a round, and not an answer."""


def conversation_of(step_id: str, params: Mapping[str, JsonValue]) -> tuple[str, int | None]:
    """Return the first turn of a step's conversation, and the number of this turn; None for the first."""
    number = int(cast(int, params.get("round") or 0))
    return (str(params["base"]), number) if number else (step_id, None)


def turns_of(base: str, known: Mapping[str, object]) -> list[str]:
    """Return the steps of a conversation: its first turn, and those that followed."""
    ids = [base]
    while (following := f"{base}/r{len(ids)}") in known:
        ids.append(following)
    return ids


def calls_in(step_id: str, turn: RecordedStep) -> list[str]:
    """Return the steps of the tool calls of a turn."""
    return [f"{step_id}/t{number}" for number, _ in enumerate(_calls(turn))]


def transcript(turns: Sequence[tuple[str, RecordedStep]], calls: Mapping[str, RecordedStep]) -> list[MessageView]:
    """Return the messages, oldest first. `turns` are turns of one conversation, `calls` the steps of their tool calls."""
    messages: list[MessageView] = []
    for number, (step_id, turn) in enumerate(turns):
        messages += _prompt(turn.info.get(PROMPT)) if number == 0 else []
        if turn.state != "done":
            continue
        messages += _round(step_id, turn, calls) if turn.is_round else [_reply(turn, turn.output)]
    return messages


def _prompt(recorded: JsonValue) -> Iterator[MessageView]:
    for each in cast("list[dict[str, Any]]", recorded or []):
        update = {"cut": bool(each.get("cut")), "omitted": int(each.get("omitted", 0))}
        yield _message(each["role"], each.get("text", "")).model_copy(update=update)


def _calls(turn: RecordedStep) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", cast("dict[str, Any]", turn.output).get("calls") or []) if turn.is_round else []


def _round(step_id: str, turn: RecordedStep, calls: Mapping[str, RecordedStep]) -> Iterator[MessageView]:
    """Yield a reply, the results of its tool calls, and the next message to the model."""
    calls_asked, output = _calls(turn), cast("dict[str, Any]", turn.output)
    waiting = {name for name, step in calls.items() if step.state == "waiting_signal"}
    shown = [
        CallView(
            id=call.get("id") or f"call {number + 1}",
            name=call["name"],
            arguments=as_text(call.get("arguments")),
            waits=f"{step_id}/t{number}" in waiting,
        )
        for number, call in enumerate(calls_asked)
    ]
    yield _reply(turn, output.get("reply", "")).model_copy(update={"calls": shown})
    for number, (call, view) in enumerate(zip(calls_asked, shown, strict=True)):
        step = calls.get(f"{step_id}/t{number}")
        if call.get("fault") or (step is not None and step.state in ("done", "failed")):
            yield _message("tool", _tool_result(call, step)).model_copy(update={"call_id": view.id, "name": view.name})
    if output.get("note"):
        yield _message("user", output["note"])


def _tool_result(call: Mapping[str, Any], step: RecordedStep | None) -> JsonValue:
    if call.get("fault"):
        return str(call["fault"])
    error = cast("dict[str, str] | None", step.info.get("error")) if step else None
    if error:
        return f"Error: {error['message']}"
    return step.output if step else None


def _reply(turn: RecordedStep, text: JsonValue) -> MessageView:
    """Return a reply, with the part of its reasoning that people can read."""
    thought, truncation = cast("dict[str, Any]", turn.info.get("reasoning") or {}), Truncation()
    return _message("assistant", text).model_copy(update={"reasoning": truncation.text(thought.get("text", ""))})


def _message(role: Any, content: JsonValue) -> MessageView:
    truncation = Truncation()
    text = truncation.text(as_text(content))
    return MessageView(role=role, text=text, cut=truncation.was_cut)
