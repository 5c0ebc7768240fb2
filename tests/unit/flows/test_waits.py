"""Options of waits: what is refused, and what a step gets of them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata.flows.definitions import Tool
from cantata.flows.waits import WaitOptions, question_of
from cantata.flows.wire import ChainNode
from cantata.values import JsonValue


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"escalate_to": ["boss"]}, "'escalate_to' needs 'escalate_after_s', the seconds until then"),
        ({"who": []}, "at least 1 item"),
        ({"remind_after_s": 0}, "greater than 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, JsonValue], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ChainNode.model_validate({"node_id": "ask", "kind": "wait", **options})

    assert message in str(refused.value)


def test_a_wait_that_was_stored_can_be_read_whatever_its_schema() -> None:
    stored = {"node_id": "ask", "kind": "wait", "answer_schema": {"$ref": "http://127.0.0.1:9/x"}}

    assert ChainNode.model_validate(stored).answer_schema == {"$ref": "http://127.0.0.1:9/x"}


def test_a_step_gets_the_options_that_are_set() -> None:
    options = WaitOptions(question="Pay it?", who=["legal"], remind_after_s=60)

    assert options.params() == {"wait": {"question": "Pay it?", "who": ["legal"], "remind_after_s": 60.0}}
    assert WaitOptions().params() == {}


def test_those_to_whom_a_wait_was_escalated_may_answer_beside_the_others() -> None:
    options = WaitOptions(who=["legal"], escalate_after_s=60, escalate_to=["boss"])

    assert options.answerers(is_escalated=False) == ["legal"]
    assert options.answerers(is_escalated=True) == ["legal", "boss"]
    assert WaitOptions(escalate_after_s=60, escalate_to=["boss"]).answerers(is_escalated=True) is None


@pytest.mark.parametrize(
    ("own", "context", "question"),
    [
        ("Own?", {"prompt": "Its?"}, "Own?"),
        ("", {"prompt": "Its?"}, "Its?"),
        ("", "Text?", "Text?"),
        ("", {"prompt": 3}, ""),
        ("", None, ""),
    ],
)
def test_a_question_is_the_own_one_or_that_of_the_context(own: str, context: JsonValue, question: str) -> None:
    assert question_of(own, context) == question


def test_a_tool_may_say_how_it_asks() -> None:
    tool = Tool.model_validate({"asks": {"question": "May I?", "who": ["legal"]}, "parameters": {"type": "object"}})

    assert tool.wait_params() == {"wait": {"question": "May I?", "who": ["legal"]}}
    assert tool.step_kind("") == "wait"
