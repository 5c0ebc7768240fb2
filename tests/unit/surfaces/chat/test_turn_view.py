"""TurnView: the chat items of a turn's events."""

from __future__ import annotations

from itertools import count

from cantata.flows.events import event_of
from cantata.flows.graph import Spec
from cantata.ledger.records import StepRecord
from cantata.surfaces.chat.turn_view import ChatItem, TurnView
from cantata.values import JsonValue


class Turn:
    """A turn as its events come."""

    def __init__(self) -> None:
        self.view = TurnView()
        self._seqs = count(1)

    def happens(self, step: StepRecord | None, kind: str, attempt: int = 1, **detail: JsonValue) -> list[ChatItem]:
        event = event_of(
            seq=next(self._seqs),
            run_id="r",
            at_ms=0,
            type=kind,
            step=step.step_id if step else None,
            attempt=attempt,
            **detail,
        )
        self.view.apply(event, step)
        return self.view.take()

    def streams(self, step: StepRecord, *texts: str) -> list[ChatItem]:
        return [item for text in texts for item in self.happens(step, "delta", text=text)]


def step(
    step_id: str,
    kind: str = "agent.turn",
    work: str | None = None,
    output: JsonValue = None,
    on_error: str = "abort",
    **info: JsonValue,
) -> StepRecord:
    known: dict[str, JsonValue] = {"agent": step_id, "input": info.pop("input", None)}
    spec = Spec.model_validate(
        {"kind": kind, "work": f"agents:{step_id}" if work is None else work, "on_error": on_error, "params": known}
    )
    return StepRecord(step_id, "running", 1, 0, 0, "", spec, output, info)


def text_of(items: list[ChatItem]) -> str:
    return "".join(each.text for each in items if each.type == "piece")


ANN = step("ann")


def test_an_answer_is_shown_as_it_comes_after_the_name_of_its_agent() -> None:
    turn = Turn()

    items = [
        *turn.happens(ANN, "started"),
        *turn.streams(ANN, "Cats ", "sleep."),
        *turn.happens(step("ann", output="Cats sleep."), "done"),
    ]

    assert items == [ChatItem("speaker", "ann"), ChatItem("piece", "Cats "), ChatItem("piece", "sleep.")]
    assert turn.view.has_shown("Cats sleep.")
    assert not turn.view.has_shown("Dogs sleep.")


def test_an_answer_that_did_not_come_in_pieces_is_shown_when_it_is_complete() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    items = turn.happens(step("ann", output={"sum": 3}), "done")

    assert text_of(items) == '{\n  "sum": 3\n}'
    assert turn.view.has_shown('{\n  "sum": 3\n}')


def test_the_reply_of_a_lost_attempt_is_voided_and_the_new_one_shown() -> None:
    turn = Turn()
    turn.happens(ANN, "started")
    turn.streams(ANN, "Cats sl")

    items = turn.happens(ANN, "lost")
    again = [*turn.happens(ANN, "started", attempt=2), *turn.streams(ANN, "Cats sleep.")]

    assert [each.type for each in items] == ["void", "speaker"]
    assert again == [ChatItem("piece", "Cats sleep.")]
    assert turn.view.has_shown("Cats sleep.")


def test_an_attempt_without_a_reply_is_not_voided() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    items = turn.happens(ANN, "retry", error={"code": "e", "message": "overloaded"})

    assert items == [ChatItem("note", "ann: overloaded; the attempt failed; another attempt follows")]


def test_agents_that_work_at_once_speak_one_after_the_other() -> None:
    turn = Turn()
    bob = step("bob")
    turn.happens(ANN, "started")
    turn.happens(bob, "started")

    assert turn.streams(bob, "Dogs bark.") == []
    assert turn.happens(step("bob", output="Dogs bark."), "done") == []
    assert turn.streams(ANN, "Cats sleep.") == [ChatItem("piece", "Cats sleep.")]
    assert turn.happens(step("ann", output="Cats sleep."), "done") == [
        ChatItem("speaker", "bob"),
        ChatItem("piece", "Dogs bark."),
    ]


def test_what_was_held_back_of_a_void_attempt_is_never_shown() -> None:
    turn = Turn()
    bob = step("bob")
    turn.happens(ANN, "started")
    turn.happens(bob, "started")
    turn.streams(bob, "Dogs b")
    turn.happens(bob, "lost")
    turn.streams(bob, "Dogs bark.")

    items = turn.happens(step("ann", output="Cats sleep."), "done")

    assert text_of(items[items.index(ChatItem("speaker", "bob")) :]) == "Dogs bark."


def test_tool_calls_are_notes() -> None:
    turn = Turn()
    call = step("ann/t0", "tool.call", "tools:price", input={"flower": "rose"})
    answer = step("ann/r1", work="agents:ann")
    turn.happens(ANN, "started")
    turn.streams(ANN, "Let me look.")

    items = [
        *turn.happens(ANN, "expanded", steps=2),
        *turn.happens(call, "started"),
        *turn.happens(step("ann/t0", "tool.call", "tools:price", output=3.5), "done"),
        *turn.happens(answer, "started"),
        *turn.streams(answer, "3.50 euros."),
        *turn.happens(step("ann/r1", work="agents:ann", output="3.50 euros."), "done"),
    ]

    assert items == [
        ChatItem("piece", "\n"),
        ChatItem("note", "⚙ price(flower=rose)"),
        ChatItem("note", "⚙ price → 3.5"),
        ChatItem("piece", "3.50 euros."),
    ]
    assert turn.view.has_shown("3.50 euros.")


def test_prefixes_that_are_for_the_router_are_not_shown() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    items = turn.streams(ANN, "[FI", "NAL] It ", "is done.")

    assert text_of(items) == "It is done."
    assert turn.view.has_shown("It is done.")


def test_a_text_that_only_begins_like_a_prefix_is_shown() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    assert text_of(turn.streams(ANN, "[", "1] first")) == "[1] first"


def test_a_text_that_is_passed_on_is_not_shown_as_an_answer() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    items = [
        *turn.streams(ANN, "[REROUTE] What do cats eat?"),
        *turn.happens(step("ann", output="[REROUTE] What do cats eat?"), "done"),
        *turn.happens(step("@reply", "team.reply", "", output="What do cats eat?", prefix="reroute"), "done"),
    ]

    assert [each.type for each in items] == ["note"]
    assert "What do cats eat?" in items[0].text
    assert not turn.view.has_shown("What do cats eat?")


def test_a_decision_of_a_router_is_a_note() -> None:
    turn = Turn()

    items = turn.happens(
        step("@route", "team.route", "teams:t", output="Cats?", chosen_agent="ann", refined=True), "expanded", steps=2
    )

    assert items == [ChatItem("note", "→ ann (the router, asked: Cats?)")]


def test_a_default_agent_is_marked_as_such() -> None:
    items = Turn().happens(
        step("@rules", "team.rules", "teams:t", chosen_agent="ann", source="default"), "expanded", steps=2
    )

    assert items == [ChatItem("note", "→ ann (by default)")]


def test_a_failure_that_does_not_fail_the_turn_is_a_note() -> None:
    turn = Turn()
    ann = step("ann", on_error="skip")
    turn.happens(ann, "started")

    assert turn.happens(ann, "failed", error={"code": "e", "message": "no key"}) == [
        ChatItem("note", "ann failed: no key")
    ]


def test_terminal_control_sequences_are_removed() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    assert text_of(turn.streams(ANN, "\x1b[31mred\x1b[0m", " \x1b", "]0;title\x07")) == "red ]0;title"


def test_warnings_are_shown() -> None:
    assert Turn().happens(None, "warning", message="no price") == [ChatItem("warning", "no price")]


def test_a_warning_about_a_step_of_an_agent_is_shown() -> None:
    turn = Turn()
    turn.happens(ANN, "started")

    assert turn.happens(ANN, "warning", message="no price") == [ChatItem("warning", "no price")]


def test_a_function_that_is_tried_again_does_not_void_the_reply_before_it() -> None:
    turn = Turn()
    turn.happens(step("ann", "agent.run"), "started")
    turn.happens(step("ann", "agent.run"), "expanded", steps=2)
    turn.happens(step("ann/@1", work="agents:ann"), "started")
    turn.streams(step("ann/@1", work="agents:ann"), "A draft.")
    turn.happens(step("ann/@1", work="agents:ann", output="A draft."), "done")

    items = turn.happens(
        step("ann/@2", "agent.function", "functions:tidy"), "retry", error={"code": "e", "message": "busy"}
    )

    assert items == [ChatItem("note", "ann: busy; the attempt failed; another attempt follows")]
