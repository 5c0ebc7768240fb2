"""The meaning of a turn's events for those who follow it."""

from __future__ import annotations

import pytest

from cantata.client.turn_activity import (
    AgentAnswered,
    AgentBegan,
    AgentFailed,
    AttemptVoided,
    Handover,
    RateLimit,
    ReplyPiece,
    ToolFailed,
    TurnAgents,
    TurnWarning,
    activity_of,
    steps_of,
)
from cantata.flows.events import RunEvent, event_of
from cantata.flows.graph import Spec
from cantata.ledger.records import StepRecord
from cantata.values import JsonValue

BROKEN: JsonValue = {"code": "x", "message": "it broke"}


def event(kind: str, step_id: str = "it", **detail: JsonValue) -> RunEvent:
    return event_of(seq=7, run_id="r1", at_ms=1, type=kind, step=step_id, attempt=2, **detail)


def step(
    kind: str,
    work: str = "",
    step_id: str = "it",
    *,
    output: JsonValue = None,
    on_error: str = "abort",
    **info: JsonValue,
) -> StepRecord:
    spec = Spec.model_validate({"kind": kind, "work": work, "on_error": on_error, "params": {"agent": "ann"}})
    return StepRecord(step_id, "running", 2, 0, 0, "w", spec, output, info)


def test_only_steps_that_are_told_of_are_asked_for() -> None:
    events = [event("delta"), event("started"), event("done"), event("accepted").model_copy(update={"step": None})]

    assert steps_of([*events, event("started", "@start")]) == ["it"]
    assert steps_of([events[0], event("started", "@start")]) == []


def test_what_needs_no_record_is_told_without_one() -> None:
    assert activity_of(event("delta", text="Hel"), None) == ReplyPiece("Hel")
    assert activity_of(event("warning", message="odd"), None) == TurnWarning("odd")
    assert activity_of(event("rate_limited", reason="rpm"), None) == RateLimit("rpm")
    assert activity_of(event("fallback"), None) == AttemptVoided("fallback", "the model failed; another model is asked")


HEARD = [("agent.turn", True), ("team.synthesize", True), ("agent.function", False), ("team.ask", False)]


@pytest.mark.parametrize(("kind", "is_heard"), HEARD)
@pytest.mark.parametrize(("type_", "is_final"), [("retry", False), ("failed", True), ("missed_deadline", True)])
def test_a_failed_attempt_is_void_and_says_whether_readers_saw_it(
    kind: str, is_heard: bool, type_: str, is_final: bool
) -> None:
    found = activity_of(event(type_, error=BROKEN), step(kind))

    assert isinstance(found, AttemptVoided)
    assert (found.cause, found.error, found.is_heard, found.is_final) == (type_, "it broke", is_heard, is_final)


def test_a_lost_attempt_has_no_error() -> None:
    found = activity_of(event("lost", worker="w1"), step("tool.call", "tools:add"))

    assert found == ToolFailed("add", "lost", "its worker w1 is gone", None)


def test_a_synthesizer_is_told_from_an_agent() -> None:
    assert activity_of(event("started"), step("agent.turn", "agents:ann")) == AgentBegan("ann", is_synthesizer=False)
    assert activity_of(event("started"), step("team.synthesize", "teams:both")) == AgentBegan(
        "both", is_synthesizer=True
    )


def test_only_an_answer_that_is_passed_on_is_a_handover() -> None:
    passed_on = step("team.reply", output="What do cats eat?", prefix="reroute")

    assert activity_of(event("expanded"), passed_on) == Handover("ann", "What do cats eat?")
    assert activity_of(event("started"), passed_on) is None
    assert activity_of(event("done"), step("team.reply", output="Mice.", prefix="final")) is None


def test_an_agent_ends_with_the_last_of_its_steps() -> None:
    agents, ann, call = (
        TurnAgents(),
        step("agent.turn", "agents:ann", "ann"),
        step("tool.call", "tools:add", "ann/t0", output=5),
    )
    last = step("agent.turn", "agents:ann", "ann/r1", output="It is 5.")
    agent = agents.agent_of(event("started", "ann"), ann)

    assert agent is not None
    assert agents.agent_of(event("delta", "ann/r1"), last) is agent
    assert agent.apply(event("expanded", "ann", steps=2), ann) is None
    assert agent.apply(event("done", "ann/t0"), call) is None
    assert agent.apply(event("done", "ann/r1"), last) == AgentAnswered("It is 5.")


@pytest.mark.parametrize(("on_error", "is_skipped"), [("abort", False), ("skip", True)])
def test_a_failed_agent_says_whether_the_turn_goes_on(on_error: str, is_skipped: bool) -> None:
    agents, ann = TurnAgents(), step("agent.turn", "agents:ann", on_error=on_error)
    agent = agents.agent_of(event("started"), ann)

    assert agent is not None
    assert agent.apply(event("failed", error=BROKEN), ann) == AgentFailed("it broke", is_skipped)


def test_steps_outside_agents_belong_to_none() -> None:
    agents = TurnAgents()

    assert agents.agent_of(event("started"), step("team.rules")) is None
    assert agents.agent_of(event("done"), step("tool.call", "tools:add")) is None
