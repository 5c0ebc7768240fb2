"""Waits for people: their options, the open ones as an inbox lists them, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, cast

from pydantic import Field, JsonValue, model_validator

from cantata.values import BoundedJson, BoundedObject, Duration, Unreadable, Value

ESCALATED_TO = "escalated_to"
"""Label of a run: those whom its last escalation let answer, separated by commas."""

_PROMPTS = ("question", "prompt")  # keys of a context that have the question


class WaitOptions(Value):
    """The options of a wait for people."""

    question: str = Field(
        default="", description="wait: the question, in text or Markdown; that in the input if absent"
    )
    answer_schema: BoundedObject | None = Field(
        default=None, description="wait: JSON schema of the answer; others are refused"
    )
    who: list[str] | None = Field(
        None,
        min_length=1,
        description="wait: who may answer: names, groups or scopes of tokens; all that may send signals if absent",
    )
    remind_after_s: Duration | None = Field(default=None, description="wait: seconds until the event `reminded`")
    escalate_after_s: Duration | None = Field(
        default=None, description="wait: seconds until those in `escalate_to` may answer too"
    )
    escalate_to: list[str] = Field(
        default_factory=list, description="wait: who may answer after an escalation, beside `who`"
    )

    @model_validator(mode="after")
    def _escalates_some_time(self) -> Self:
        if self.escalate_to and self.escalate_after_s is None:
            raise ValueError("'escalate_to' needs 'escalate_after_s', the seconds until then")
        return self

    def params(self) -> dict[str, JsonValue]:
        """Return the options that are set, as a parameter of the step."""
        found = {name: value for name in WaitOptions.model_fields if (value := getattr(self, name))}
        return {"wait": cast(JsonValue, found)} if found else {}

    def answerers(self, *, is_escalated: bool) -> list[str] | None:
        """Return who may answer; None for all."""
        return None if self.who is None else [*self.who, *(self.escalate_to if is_escalated else ())]


def question_of(question: str, asks: JsonValue) -> str:
    """Return the question of a wait: its own, or that in its context; empty if it has none."""
    found = (
        next((asks[key] for key in _PROMPTS if isinstance(asks.get(key), str)), "")
        if isinstance(asks, Mapping)
        else asks
    )
    return question or (found if isinstance(found, str) else "")


class InboxItem(Value):
    """A step that waits for a person."""

    id: str = Field(description="`RUN/STEP`: what an answer names")
    run_id: str = Field(description="its run")
    step: str = Field(description="the step's id")
    kind: str = Field(description="its kind: `wait`, or that of a step whose outcome is unknown")
    work: str = Field(default="", description="the tool that asks, such as `tools:ask_legal`")
    question: str = Field(description="what is asked")
    context: JsonValue = Field(default=None, description="the input of the wait, or the arguments of the model's call")
    answer_schema: dict[str, JsonValue] | None = Field(
        default=None, description="JSON schema of the answer; null if any JSON is one"
    )
    who: list[str] | None = Field(
        default=None, description="who may answer: names, groups or scopes of tokens; null for all"
    )
    since: float = Field(description="when it began to wait, Redis's clock, seconds since 1970")
    ends_at: float | None = Field(default=None, description="when its wait times out")
    reminded_at: float | None = Field(default=None, description="when its reminder was due")
    escalated_at: float | None = Field(default=None, description="when it was escalated")
    run_kind: str = Field(description="turn or chain")
    title: str = Field(description="the request of the run in a line")
    labels: dict[str, str] = Field(default_factory=dict, description="the labels of the run")
    refused: str = Field(default="", description="why the caller may not answer; empty if it may")
    unreadable: Unreadable = ""


class Inbox(Value):
    """Steps that wait for a person, those that have waited longest first."""

    items: list[InboxItem] = Field(description="those that have waited longest first")
    next: str | None = Field(default=None, description="what `after` is for the rest; null if there is none")


class Answer(Value):
    """The answer to a step that waits."""

    id: str = Field(description="the `id` of the item: `RUN/STEP`")
    value: BoundedJson = Field(description="any JSON that fits its `answer_schema`; it is the output of the step")
