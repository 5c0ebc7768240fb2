"""What the events of a turn are in a chat."""

from __future__ import annotations

import pytest

from cantata.flows.events import RunEvent, event_of
from cantata.flows.graph import Spec
from cantata.flows.wire import RunResult
from cantata.ledger.records import StepRecord
from cantata.surfaces.gateway.api.chat_frames import Frame, frame_of, result_frame
from cantata.values import ErrorInfo, JsonValue

PLACE: Frame = {"run_id": "r1", "seq": 7, "step": "it", "attempt": 2}
FAILED: dict[str, JsonValue] = {"error": {"code": "x", "message": "it broke"}}


def event(kind: str, **detail: JsonValue) -> RunEvent:
    return event_of(seq=7, run_id="r1", at_ms=1, type=kind, step="it", attempt=2, **detail)


def step(
    kind: str,
    work: str = "",
    *,
    output: JsonValue = None,
    info: dict[str, JsonValue] | None = None,
    **params: JsonValue,
) -> StepRecord:
    return StepRecord("it", "running", 2, 0, 0, "w", Spec(kind=kind, work=work, params=params), output, info or {})


def test_a_piece_of_a_reply_is_a_token() -> None:
    assert frame_of(event("delta", text="Hel"), None) == {"type": "token", **PLACE, "text": "Hel"}


@pytest.mark.parametrize("kind", ["retry", "failed", "missed_deadline"])
def test_what_an_agent_said_is_void_when_its_attempt_does_not_count(kind: str) -> None:
    frame = frame_of(event(kind, **FAILED), step("agent.turn", "agents:ann"))

    assert frame == {"type": "void", **PLACE, "reason": kind, "error": "it broke"}


@pytest.mark.parametrize("kind", ["lost", "released"])
def test_what_an_agent_said_is_void_when_its_worker_is_gone(kind: str) -> None:
    assert frame_of(event(kind), step("agent.turn", "agents:ann")) == {
        "type": "void",
        **PLACE,
        "reason": kind,
        "error": None,
    }


def test_another_model_makes_void_what_the_first_one_said() -> None:
    assert frame_of(event("fallback"), None) == {"type": "void", **PLACE, "reason": "fallback"}


def test_an_agent_begins_once_though_it_has_several_rounds() -> None:
    assert frame_of(event("started"), step("agent.turn", "agents:ann")) == {"type": "agent", **PLACE, "agent": "ann"}
    assert frame_of(event("started"), step("agent.turn", "agents:ann", round=1)) is None


def test_a_tool_is_told_from_its_call_to_its_result() -> None:
    call = step("tool.call", "tools:add", output=5, input={"a": 2})

    assert frame_of(event("started"), call) == {
        "type": "tool",
        **PLACE,
        "tool": "add",
        "state": "started",
        "input": {"a": 2},
    }
    assert frame_of(event("done"), call) == {"type": "tool", **PLACE, "tool": "add", "state": "done", "output": 5}
    assert frame_of(event("failed", **FAILED), call) == {
        "type": "tool",
        **PLACE,
        "tool": "add",
        "state": "failed",
        "error": "it broke",
    }


def test_a_large_value_is_left_out() -> None:
    frame = frame_of(event("done"), step("mcp.call", "tools:files.read", output="x" * 5000))

    assert frame is not None
    assert frame["output"] is None


CHOICES: list[tuple[str, dict[str, JsonValue], Frame]] = [
    ("team.rules", {"chosen_agent": "ann", "source": "rules"}, {"agent": "ann", "by": "rules"}),
    (
        "team.route",
        {"chosen_agent": "ann", "source": "router", "refined": True},
        {"agent": "ann", "by": "router", "refined": True},
    ),
    (
        "team.route",
        {"chosen_agent": "ann", "source": "default", "fault": "odd"},
        {"agent": "ann", "by": "default", "fault": "odd"},
    ),
    ("team.route", {"plan": ["ann", "bob"]}, {"agent": None, "by": "router", "plan": ["ann", "bob"]}),
    ("team.next", {"chosen_agent": "bob", "index": 1}, {"agent": "bob", "by": "turn"}),
]


@pytest.mark.parametrize(("kind", "info", "frame"), CHOICES)
@pytest.mark.parametrize("end", ["done", "expanded"])
def test_a_decision_is_told_when_it_is_made(kind: str, info: dict[str, JsonValue], frame: Frame, end: str) -> None:
    assert frame_of(event(end), step(kind, info=info)) == {"type": "chosen", **PLACE, **frame}
    assert frame_of(event("started"), step(kind, info=info)) is None


@pytest.mark.parametrize("kind", ["accepted", "started", "expanded", "skipped", "of-a-newer-version"])
def test_what_a_reader_need_not_know_is_no_frame(kind: str) -> None:
    assert frame_of(event(kind), step("history.block")) is None
    assert frame_of(event(kind), None) is None


def test_warnings_and_waiting_are_told() -> None:
    assert frame_of(event("warning", message="odd"), None) == {"type": "warning", **PLACE, "message": "odd"}
    assert frame_of(event("rate_limited", reason="rpm"), None) == {"type": "rate_limited", **PLACE, "reason": "rpm"}


def test_the_result_tells_error_and_answer_apart() -> None:
    result = RunResult(run_id="r1", status="failed", error=ErrorInfo(code="x", message="it broke"), agents=["ann"])

    frame = result_frame(event("closed", status="failed"), result)

    assert (frame["type"], frame["seq"], frame["status"], frame["output"]) == ("result", 7, "failed", None)
    assert frame["error"] == {"code": "x", "message": "it broke", "step": None}
