"""Graphs: the role and the name of a step, and outputs that are validated once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata.flows.graph import Outcome, Spec, Step, is_named
from cantata.values import JsonValue


def test_the_role_is_that_of_the_kind_and_a_kind_of_a_newer_version_is_a_decision() -> None:
    assert [Spec(kind=kind).role for kind in ("agent.turn", "tool.call", "newer.kind")] == ["turn", "tool", "decision"]


def test_the_name_in_the_work_of_a_step_may_have_colons() -> None:
    assert [Spec(kind="k", work=work).work_name for work in ("tools:a", "tools:a:b", "diskurs", "")] == [
        "a",
        "a:b",
        "",
        "",
    ]


@pytest.mark.parametrize(("name", "is_meant"), [
    ("desk/3.pay", True), ("3.pay", True), ("pay", True), ("ay", False), ("k/3.pay", False), (".pay", False), ("desk", False), ("", False),
])  # fmt: skip
def test_a_step_is_named_by_its_id_or_its_end(name: str, is_meant: bool) -> None:
    assert is_named("desk/3.pay", name) is is_meant
    assert not is_named("desk/x3.pay", "pay")
    assert not is_named("desk/5.wait/2.approve", "approve"), "the name of the wait is 2.approve"


def test_a_step_cannot_be_changed_and_has_no_other_fields() -> None:
    step = Step(id="a", kind="k")

    with pytest.raises(ValidationError, match="frozen"):
        step.__setattr__("id", "b")
    with pytest.raises(ValidationError, match="Extra inputs"):
        Step.model_validate({"id": "a", "kind": "k", "qeue": "tools"})


def test_a_large_output_is_not_copied_when_an_outcome_is_made() -> None:
    output: list[JsonValue] = [{"n": 1}]

    assert Outcome(output=output).output is output
