"""Plans of tool calls: what is refused before anything runs, and what stands for the result of another step."""

from __future__ import annotations

from typing import Any

import pytest

from cantata_workers.frontends.diskurs import plans
from cantata_workers.frontends.diskurs.replies import ReplyError


def step(
    step_id: str, function: str = "add", *, depends_on: list[str] | None = None, **parameters: Any
) -> dict[str, Any]:
    return {
        "step_id": step_id,
        "function": function,
        "parameters": parameters,
        "depends_on": depends_on or [],
        "result": None,
        "status": "pending",
    }


def fault(*steps: dict[str, Any]) -> str:
    with pytest.raises(ReplyError) as caught:
        plans.check({"execution_plan": list(steps)}, ["add", "mul"])
    return str(caught.value)


def test_a_plan_that_can_be_carried_out_is_not_refused() -> None:
    plans.check({"execution_plan": [step("1"), step("2", depends_on=["1"], a="$1")]}, ["add"])


def test_an_undeclared_reference_adds_the_dependency() -> None:
    assert plans.needs_of(step("3", depends_on=["1"], a={"b": ["sum of $2 and $1"]}), ["1", "2", "3"]) == ["1", "2"]


def test_what_is_wrong_is_told_all_at_once() -> None:
    told = fault(step("1", "sub"), step("1"), step("2", depends_on=["9"]), step("3", a="$8"), step("a b"))
    assert "step_id '1' stands twice" in told
    assert "step '1' calls 'sub', but the functions are add, mul" in told
    assert "step '2' depends on '9', which is no step" in told
    assert "step '3' depends on '8', which is no step" in told
    assert "not 'a b'" in told


def test_a_circle_is_refused() -> None:
    assert "these steps wait for each other: 1, 2" in fault(step("1", a="$2"), step("2", depends_on=["1"]), step("3"))
    assert "these steps wait for each other: 1" in fault(step("1", a="$1"))


def test_money_within_a_text_is_no_reference() -> None:
    plans.check({"execution_plan": [step("1", note="costs $50 or more")]}, ["add"])
    assert plans.fill_references({"note": "costs $50"}, {"1": 3}) == {"note": "costs $50"}


def test_a_reference_that_is_all_of_a_text_keeps_its_type() -> None:
    results: dict[str, Any] = {"1": {"a": 2}, "two": [1]}
    assert plans.fill_references({"x": "$1", "y": ["$two", {"z": "$1!"}], "n": 4}, results) == {
        "x": {"a": 2},
        "y": [[1], {"z": '{"a": 2}!'}],
        "n": 4,
    }


def test_it_is_final_with_an_answer_and_without_the_wish_for_another_plan() -> None:
    done: dict[str, Any] = {"execution_plan": [{**step("1"), "status": "completed"}]}
    assert plans.is_final({**done, "answer": "3"})
    assert not plans.is_final({**done, "answer": ""})
    assert not plans.is_final({**done, "answer": "3", "replan": True})
    assert not plans.is_final({"execution_plan": [step("1")], "answer": "3"})


def test_a_plan_that_was_carried_out_is_not_begun_again_by_an_echo() -> None:
    done: dict[str, Any] = {"execution_plan": [{**step("1"), "status": "completed"}]}
    echo: dict[str, Any] = {"execution_plan": [step("1")], "answer": "3"}
    assert plans.merge_plan(done, dict(echo)) == {**echo, **done}
    assert plans.merge_plan(done, {**echo, "replan": True}) == {**echo, "replan": True}
    assert plans.merge_plan({"execution_plan": []}, dict(echo)) == echo


def test_what_a_model_says_came_of_its_own_plan_counts_for_nothing() -> None:
    done: dict[str, Any] = {**step("1"), "status": "completed", "result": 3}
    more: dict[str, Any] = {**step("2"), "status": "done"}

    assert plans.merge_plan({}, {"execution_plan": [done]})["execution_plan"] == [step("1")]
    again = plans.merge_plan({"execution_plan": [done]}, {"replan": True, "execution_plan": [done, more]})
    assert again["execution_plan"] == [step("1"), step("2")]


def test_what_came_of_a_plan_stands_in_it() -> None:
    done = plans.with_results([step("1"), step("2")], {"1": (3, ""), "2": (None, "no")})
    assert [(each["result"], each["status"]) for each in done] == [(3, "completed"), ("no", "failed")]  # type: ignore[index,call-overload]
