"""The events of a turn are told in the documented words, each agent once, whatever happened within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cantata.flows.definitions import Team
from cantata.flows.events import event_of
from cantata.flows.graph import Spec
from cantata.flows.wire import RunResult, TurnRequest
from cantata.ledger.records import StepRecord
from cantata.values import ErrorInfo
from cantata_frontends.agentchain.decision_log import LogEntry
from cantata_frontends.agentchain.log_mapping import LogMapping

PIPELINE = Team(mode="pipeline", agents=["ann", "bob"])
BROADCAST = Team(mode="broadcast", agents=["ann", "bob"])
ROUTER = Team(mode="router", agents=["ann", "bob"])
ROUND: Mapping[str, Any] = {"round": {"number": 1}}


class Play:
    """A turn whose steps are known as they are at its end, as to one who reads late."""

    def __init__(self, team: Team, *, text: str = "hello", **turn: Any) -> None:
        self.asked: list[str] = []
        self._known: dict[str, StepRecord] = {}
        self._at = 1000
        self.mapping = LogMapping(
            TurnRequest(text=text, session="s", **({"team": "team"} | turn if "agent" not in turn else turn)),
            team,
            self._steps,
        )

    def knows(self, step_id: str, kind: str = "agent.turn", output: Any = None, **given: Any) -> None:
        """What is known of a step."""
        info = {key: given.pop(key) for key in list(given) if key not in Spec.model_fields}
        work = given.pop("work", f"agents:{step_id.partition('/')[0]}" if kind.startswith("agent.") else "teams:team")
        spec = Spec(kind=kind, work=work, **given)
        self._known[step_id] = StepRecord(step_id, "done", 1, 0, 0, "-", spec, output, info)

    def entries_of(self, *told: tuple[str, str | None]) -> list[LogEntry]:
        """The lines of events, each (type, step), 100 ms apart."""
        found = []
        for word, step_id in told:
            self._at += 100
            event = event_of(seq=self._at, run_id="r", at_ms=self._at, type=word, step=step_id, message="odd")
            found += list(self.mapping.entries_of(event))
        return found

    def _steps(self, step_ids: Sequence[str]) -> Mapping[str, StepRecord]:
        self.asked += step_ids
        return {step_id: self._known[step_id] for step_id in step_ids if step_id in self._known}


def names(lines: Sequence[LogEntry]) -> list[str]:
    return [line.event for line in lines]


def result(status: Any = "succeeded", output: Any = "answer", error: ErrorInfo | None = None) -> RunResult:
    return RunResult(run_id="r", status=status, output=output, error=error)


def test_a_row_of_agents_is_told_with_what_each_was_asked_and_how_long_it_took() -> None:
    play = Play(PIPELINE)
    play.knows("ann", output="from ann", reads={"@text": "=@start"})
    play.knows("bob", output={"b": 1}, reads={"@text": "ann"})

    lines = play.entries_of(
        ("accepted", None), ("started", "ann"), ("done", "ann"), ("started", "bob"), ("done", "bob")
    )

    common: Mapping[str, Any] = {"input_type": "str", "history_included": False}
    assert lines == [
        LogEntry("process_input_start", {"mode": "pipeline", "input": "hello"}, 1100),
        LogEntry(
            "pipeline_step_start", {"step": 1, "total_steps": 2, "agent": "ann", "input_length": 5, **common}, 1200
        ),
        LogEntry(
            "pipeline_step_success",
            {"step": 1, "total_steps": 2, "agent": "ann", "response_length": 8, "duration_ms": 100},
            1300,
        ),
        LogEntry(
            "pipeline_step_start", {"step": 2, "total_steps": 2, "agent": "bob", "input_length": 8, **common}, 1400
        ),
        LogEntry(
            "pipeline_step_success",
            {"step": 2, "total_steps": 2, "agent": "bob", "response_length": 8, "duration_ms": 100},
            1500,
        ),
    ]


def test_an_agent_that_is_tried_again_begins_once() -> None:
    play = Play(PIPELINE)
    play.knows("ann", output="a")

    lines = play.entries_of(
        *(
            ("started", "ann"),
            ("lost", "ann"),
            ("started", "ann"),
            ("retry", "ann"),
            ("started", "ann"),
            ("done", "ann"),
        )
    )

    assert names(lines) == ["pipeline_step_start", "pipeline_step_success"]
    assert lines[1].fields["duration_ms"] == 500, "from the first attempt on"


def test_rounds_of_tool_calls_are_one_agent() -> None:
    play = Play(PIPELINE)
    play.knows("ann")
    play.knows("ann/t0", kind="tool.call", work="tools:add", scope="ann")
    play.knows("ann/r1", output="the answer", params={"round": 1})

    lines = play.entries_of(
        ("started", "ann"),
        ("expanded", "ann"),
        *((word, f"ann/{step}") for step in ("t0", "r1") for word in ("started", "done")),
    )

    assert names(lines) == ["pipeline_step_start", "pipeline_step_success"]
    assert lines[1].fields["response_length"] == len("the answer")


def test_a_row_of_instructions_within_another_scope_is_one_agent() -> None:
    play = Play(ROUTER)
    play.knows("ann", kind="agent.run", scope="@route")
    for inner in ("ann/@1", "ann/@1/r1", "ann/@2"):
        play.knows(inner, scope="ann", work="agents:ann", output="x")
    play.knows("ann/@end", kind="agent.end", scope="@route", output="the end")

    inner_events = [
        (word, step) for step in ("ann/@1", "ann/@1/r1", "ann/@2", "ann/@end") for word in ("started", "done")
    ]
    lines = play.entries_of(("started", "ann"), ("expanded", "ann"), *inner_events)

    assert names(lines) == ["agent_execution_start", "agent_execution_success"]
    assert lines[1].fields["response_length"] == len("the end")


def test_the_conversation_before_an_input_is_told() -> None:
    play = Play(PIPELINE)
    play.knows(
        "ann/@asked",
        kind="history.block",
        work="history:ann",
        output="Conversation History: ...",
        reads={"@text": "=@start"},
    )
    play.knows("ann", output="a", reads={"@text": "ann/@asked"})

    lines = play.entries_of(("started", "ann/@asked"), ("done", "ann/@asked"), ("started", "ann"))

    assert names(lines) == ["pipeline_step_start"]
    assert lines[0].fields.items() >= {"history_included": True, "input_length": 25}.items()


@pytest.mark.parametrize("word", ["failed", "missed_deadline", "skipped"])
def test_an_agent_that_does_not_answer_is_an_error(word: str) -> None:
    play = Play(BROADCAST)
    play.knows("ann", error={"code": "missed_deadline", "message": "did not answer in time"})

    lines = play.entries_of(("started", "ann"), (word, "ann"))

    assert names(lines) == ["broadcast_agent_start", "broadcast_agent_error"]
    assert lines[1].fields["error"] == "did not answer in time"


def test_what_never_began_has_no_end() -> None:
    play = Play(PIPELINE)
    play.knows("bob")

    assert play.entries_of(("skipped", "bob")) == []


def test_the_pieces_of_a_reply_cost_nothing() -> None:
    play = Play(PIPELINE)
    play.knows("ann")

    assert play.entries_of(*[("delta", "ann")] * 1000, ("rate_limited", "ann"), ("released", "ann")) == []
    assert play.asked == []


def test_a_step_that_is_not_known_is_not_told() -> None:
    assert Play(PIPELINE).entries_of(("started", "new"), ("done", "new")) == []


def test_a_warning_is_told() -> None:
    assert Play(PIPELINE).entries_of(("warning", "ann")) == [
        LogEntry("warning", {"message": "odd", "step": "ann"}, 1100)
    ]


# Decisions


def test_a_round_of_the_router_is_told_from_its_rules_to_its_answer() -> None:
    play = Play(ROUTER)
    play.knows("@rules", kind="team.rules", params=ROUND)
    play.knows("@router", kind="team.ask", params=ROUND, output='{"chosen_agent": "ann"}')
    play.knows(
        "@route", kind="team.route", params=ROUND, output="better", source="router", chosen_agent="ann", refined=True
    )
    play.knows("ann", reads={"@text": "=@route"}, scope="@route", output="x")
    play.knows("@reply", kind="team.reply", work="agents:ann", params={**ROUND, "agent": "ann"}, output="x", prefix="")

    lines = play.entries_of(
        ("started", "@rules"),
        ("expanded", "@rules"),
        ("started", "@router"),
        ("done", "@router"),
        ("started", "@route"),
        ("expanded", "@route"),
        ("started", "ann"),
        ("done", "ann"),
        ("started", "@reply"),
        ("done", "@reply"),
    )

    assert names(lines) == [
        "router_internal_step_start",
        "simple_router_defer",
        "prepare_full_decision_prompt",
        "complex_router_output",
        "parse_decision_success",
        "router_decision",
        "agent_execution_start",
        "agent_execution_success",
        "agent_final_response_no_prefix",
    ]
    assert lines[5].fields == {"source": "router", "agent": "ann", "refined_query_present": True, "internal_step": 1}
    assert lines[6].fields.items() >= {"agent": "ann", "input_length": len("better")}.items()


def test_a_reply_that_cannot_be_used_is_told_and_asked_for_again() -> None:
    play = Play(ROUTER)
    play.knows("@router", kind="team.ask", params=ROUND, output="hm")
    play.knows("@route", kind="team.route", params=ROUND, fault="the reply has no JSON object")
    play.knows("@router.again", kind="team.ask", params={**ROUND, "fault": "the reply has no JSON object"}, output="hm")
    play.knows("@route.again", kind="team.route", params=ROUND, error={"code": "no_agent", "message": "nobody"})

    lines = play.entries_of(
        ("started", "@router"),
        ("done", "@router"),
        ("expanded", "@route"),
        ("started", "@router.again"),
        ("done", "@router.again"),
        ("failed", "@route.again"),
    )

    assert names(lines) == [
        "router_internal_step_start",
        "prepare_full_decision_prompt",
        "complex_router_output",
        "parse_decision_error",
        "prepare_full_decision_prompt",
        "complex_router_output",
        "parse_decision_error",
        "router_decision_failed",
    ]
    assert [line.fields.get("asks_again") for line in lines if line.event == "prepare_full_decision_prompt"] == [
        False,
        True,
    ]
    final_entries = list(
        play.mapping.final_entries(result("failed", None, ErrorInfo(code="no_agent", message="nobody")), 5000)
    )
    assert names(final_entries) == ["history_add", "history_add", "agent_selection_failed", "process_input_end"]


def test_the_default_agent_is_a_decision_of_its_own_source() -> None:
    play = Play(ROUTER)
    play.knows(
        "@route", kind="team.route", params=ROUND, source="default", chosen_agent="bob", refined=False, fault="hm"
    )
    play.knows("@rules", kind="team.rules", params=ROUND, source="default", chosen_agent="bob")

    assert names(play.entries_of(("expanded", "@route"))) == ["parse_decision_error", "router_decision"]
    assert play.entries_of(("expanded", "@rules"))[0].fields["source"] == "default"


def test_when_no_more_agents_may_run_the_end_says_so_once() -> None:
    play = Play(Team(mode="router", agents=["ann", "bob"], strategy="dynamic_decomposition", max_internal_steps=2))
    error = {"code": "exhausted", "message": "[Info] Reached max internal steps (2)"}
    play.knows("@route.3", kind="team.route", params=ROUND, error=error)

    assert play.entries_of(("failed", "@route.3")) == []
    lines = list(play.mapping.final_entries(result("exhausted", "x", ErrorInfo(**error)), 9000))
    assert names(lines) == ["history_add", "history_add", "router_max_steps_reached", "process_input_end"]
    assert lines[-2].fields["max_internal_steps"] == 2


@pytest.mark.parametrize(
    ("strategy", "prefix", "said"),
    [
        ("single_agent_dispatch", "reroute", ["agent_reroute_requested"]),
        ("single_agent_dispatch", "final", ["agent_final_response_prefix"]),
        ("static_plan", "reroute", ["static_plan_reroute"]),
        ("static_plan", "", []),
        ("dynamic_decomposition", "", []),
    ],
)
def test_what_an_answer_says_of_the_turn_is_told(strategy: Any, prefix: str, said: list[str]) -> None:
    play = Play(Team(mode="router", agents=["ann"], strategy=strategy))
    play.knows("@reply", kind="team.reply", work="agents:ann", params={"agent": "ann"}, output="x", prefix=prefix)

    assert names(play.entries_of(("expanded", "@reply"))) == said


def test_in_turns_the_next_one_is_told() -> None:
    play = Play(Team(mode="round_robin", agents=["ann", "bob"]))
    play.knows("@next", kind="team.next", index=5, chosen_agent="bob")
    play.knows("bob")

    lines = play.entries_of(("expanded", "@next"), ("started", "bob"))

    assert [(line.event, line.fields["next_index"]) for line in lines] == [("round_robin_agent_start", 0)]


def test_what_merges_a_broadcast_is_told() -> None:
    play = Play(BROADCAST)
    play.knows("@synthesizer", kind="team.synthesize", output="both", model="openai/gpt-4o-mini")
    play.knows("@unmerged", kind="team.synthesize", output="{}", unmerged="the model is away")
    play.knows("@responses", kind="team.collect", output="{}")

    lines = play.entries_of(("done", "@synthesizer"), ("done", "@unmerged"), ("done", "@responses"))

    assert names(lines) == ["broadcast_synthesis_success", "broadcast_synthesis_error", "broadcast_concatenation"]
    assert lines[1].fields == {"error": "the model is away"}


# Ends


def test_a_direct_turn_has_words_of_its_own() -> None:
    play = Play(ROUTER, agent="ann", send_history=True)
    play.knows("ann", output="a")

    lines = [
        *play.entries_of(("accepted", None), ("started", "ann"), ("done", "ann")),
        *play.mapping.final_entries(result(), 1400),
    ]

    assert lines == [
        LogEntry("run_direct_start", {"agent": "ann", "input_length": 5, "send_history": True}, 1100),
        LogEntry("history_add", {"role": "user", "content_length": 5}, 1400),
        LogEntry("history_add", {"role": "assistant", "content_length": 6}, 1400),
        LogEntry("run_direct_finished", {"agent": "ann", "response_length": 6}, 1400),
        LogEntry("run_direct_end", {"agent": "ann", "duration_ms": 300}, 1400),
    ]
    failed = play.mapping.final_entries(result("failed", None, ErrorInfo(code="x", message="no")), 1500)
    assert names(list(failed))[-2:] == ["run_direct_error", "run_direct_end"]


def test_an_empty_answer_is_not_written_down() -> None:
    play = Play(PIPELINE)

    assert names(list(play.mapping.final_entries(result(output=""), 2000))) == [
        "history_add",
        "history_add_skipped",
        "pipeline_empty_response",
        "process_input_end",
    ]


def test_a_turn_that_was_cancelled_has_an_end() -> None:
    play = Play(PIPELINE)

    final_entries = list(play.mapping.final_entries(result("cancelled", None), 2000))[-1]

    assert (final_entries.event, final_entries.fields["status"], final_entries.fields["response_length"]) == (
        "process_input_end",
        "cancelled",
        0,
    )
