"""The form of an answer: the schema of a type, and what an early answer must fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from cantata.errors import StepError
from cantata.flows.workflows.answer_form import AnswerForm
from cantata.values import JsonValue


class Approval(BaseModel):
    """An answer as a model."""

    approved: bool


@dataclass
class Choice:
    """An answer as a dataclass."""

    size: Literal["S", "L"]


@pytest.mark.parametrize(
    ("answer_type", "value", "answer"),
    [
        (Approval, {"approved": True}, Approval(approved=True)),
        (Choice, {"size": "S"}, Choice("S")),
        (list[int], [1], [1]),
        (None, "any", "any"),
    ],
)
def test_an_answer_is_converted_to_its_type(answer_type: Any, value: JsonValue, answer: object) -> None:
    assert AnswerForm("ok", answer_type, {}).convert(value) == answer


@pytest.mark.parametrize(
    ("answer_type", "options", "fault"),
    [
        (Approval, {}, "the value.approved: Field required"),
        (None, {"answer_schema": {"type": "object", "required": ["approved"]}}, "'approved' is a required property"),
    ],
)
def test_an_early_answer_that_does_not_fit_is_an_error_of_the_wait(
    answer_type: Any, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(StepError, match=rf"the signal 'ok' does not fit its answer_schema: {fault}") as refused:
        AnswerForm("ok", answer_type, options).convert({})

    assert refused.value.code == "bad_answer"


def test_a_step_gets_the_schema_of_the_type_beside_the_options() -> None:
    params = AnswerForm("ok", Choice, {"question": "Which?"}).params["wait"]

    assert params == {
        "question": "Which?",
        "answer_schema": {
            "properties": {"size": {"enum": ["S", "L"], "title": "Size", "type": "string"}},
            "required": ["size"],
            "title": "Choice",
            "type": "object",
            "description": "An answer as a dataclass.",
        },
    }


@pytest.mark.parametrize(
    ("answer_type", "options", "message"),
    [
        (None, {"whom": ["legal"]}, r"wf.wait\('ok'\): the options.whom: Extra inputs are not permitted"),
        (None, {"remind_after_s": -1}, "remind_after_s"),
        (object(), {}, "wf.wait: answer_type=<object object at .*> has no JSON schema"),
    ],
)
def test_options_that_cannot_work_are_errors_of_the_workflow(
    answer_type: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StepError, match=message):
        AnswerForm("ok", answer_type, options)
