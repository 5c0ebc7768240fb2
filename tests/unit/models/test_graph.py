"""Graphs: the role and the name of a step, and outputs that are validated once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata.models.graph import Outcome, Spec, Step
from cantata.models.values import JsonValue


def test_the_role_is_that_of_the_kind_and_a_kind_of_a_newer_version_is_a_decision() -> None:
    assert [Spec(kind=kind).role for kind in ("agent.turn", "tool.call", "newer.kind")] == ["turn", "tool", "decision"]


def test_the_name_in_the_work_of_a_step_may_have_colons() -> None:
    assert [Spec(kind="k", work=work).work_name for work in ("tools:a", "tools:a:b", "diskurs", "")] == ["a", "a:b", "", ""]


def test_a_step_cannot_be_changed_and_has_no_other_fields() -> None:
    step = Step(id="a", kind="k")

    with pytest.raises(ValidationError, match="frozen"):
        step.__setattr__("id", "b")
    with pytest.raises(ValidationError, match="Extra inputs"):
        Step.model_validate({"id": "a", "kind": "k", "qeue": "tools"})


def test_a_large_output_is_not_copied_when_an_outcome_is_made() -> None:
    output: list[JsonValue] = [{"n": 1}]

    assert Outcome(output=output).output is output
