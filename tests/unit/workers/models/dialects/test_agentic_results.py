"""An agentic step tells what it did."""

from __future__ import annotations

from cantata.models.values import Usage
from cantata.workers.models.dialects.call_parsing import ParsedCall
from cantata.workers.models.dialects.conversation import ModelRound, ToolResult, agentic_result


def test_a_result_counts_what_the_rounds_did() -> None:
    calls = (ParsedCall(id="1", name="add", arguments={"a": 1}), ParsedCall(id="2", name="nope", fault="not there"))
    rounds = [
        ModelRound(calls=calls, ms=10.5, usage=Usage(input_tokens=5, output_tokens=2)),
        ModelRound(note="Say something.", ms=2, usage=Usage(input_tokens=8)),
        ModelRound(reply="2", ms=3),
    ]

    result = agentic_result("2", rounds, [[ToolResult([1] * 20_000), ToolResult()], [], []], "minimal")

    steps = result.pop("steps")
    assert result == {
        "final_answer": "2",
        "total_steps": 3,
        "max_steps_reached": False,
        "objective_achieved": True,
        "total_tools_called": 2,
        "total_tokens_used": 15,
        "total_execution_time_ms": 15.5,
        "history_mode": "minimal",
        "errors": ["nope: not there"],
        "warnings": [],
    }
    assert isinstance(steps, list)
    first, second, third = steps
    assert isinstance(first, dict)
    assert isinstance(first["tool_calls"], list)
    assert "[cut here" in str(first["tool_calls"][0])
    assert first["tool_calls"][1] == {"name": "nope", "args": None, "error": "not there"}
    assert first["error"] == "nope: not there"
    assert second == {
        "step_number": 2, "tool_calls": [], "tokens_used": 8, "execution_time_ms": 2, "clarification_attempts": 1, "error": None,
    }  # fmt: skip
    assert isinstance(third, dict)
    assert third["clarification_attempts"] == 0


def test_a_step_that_ran_out_has_not_achieved_its_objective() -> None:
    result = agentic_result("so far", [], [], "progressive", max_steps_reached=True)

    assert result["max_steps_reached"]
    assert not result["objective_achieved"]


def test_a_small_result_stays_what_it_was() -> None:
    rounds = [ModelRound(calls=(ParsedCall(id="1", name="add", arguments={}),))]

    result = agentic_result("x", rounds, [[ToolResult({"sum": 3})]], "minimal")

    assert result["steps"][0]["tool_calls"] == [{"name": "add", "args": {}, "result": {"sum": 3}}]  # type: ignore[index,call-overload]
