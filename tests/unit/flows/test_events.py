"""One vocabulary of events: the classes, the words that Lua writes, and what is generated from them agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

import cantata
from cantata.client.graphs.run_pages import attempts_of
from cantata.client.view import RunView
from cantata.flows import events
from cantata.flows.events import EVENT_CLASSES, RunEvent, event_of
from cantata.ledger.runs.timeline import KINDS, NOTED
from cantata.surfaces.cli.views.plain_view import apply_and_describe
from cantata.surfaces.gateway.api.chat_frames import frame_of
from cantata.values import JsonValue
from tests.acceptance import write_events

TOP = Path(cantata.__file__).parents[2]
LUA = "\n".join(path.read_text("utf-8") for path in (TOP / "orchestrator" / "cantata").rglob("*.lua"))
PYTHON = "\n".join(
    path.read_text("utf-8") for root in ("orchestrator", "workers") for path in (TOP / root).rglob("*.py")
)


def test_every_event_that_is_written_has_a_class_and_every_class_is_written() -> None:
    in_lua = set(re.findall(r"(?:\b(?:event|fail)\(|\bevent_of_item[(,]|follow\('fail', )[^'\n]*'(\w+)'", LUA)) | set(
        re.findall(r"event\(.*? and '(\w+)' or '(\w+)'", LUA)[0]
    )
    noted = set(re.findall(r"(?:append_events?\(|ledger/append_event\",)[^\"]*\"(\w+)\"", PYTHON))

    assert in_lua | noted == set(EVENT_CLASSES)


def test_scripts_that_look_for_events_know_the_same_types() -> None:
    (moments,) = re.findall(r"local KINDS = {(.*?)}", LUA, re.DOTALL)
    (ends,) = re.findall(r"local ENDINGS = {(.*?)}", LUA)

    assert set(re.findall(r"\w+(?= = true)", moments)) == NOTED
    assert set(re.findall(r"\w+(?= = true)", ends)) == KINDS - {"started"}


def test_the_order_in_which_steps_ended_reads_each_event_that_ends_one() -> None:
    (ends,) = re.findall(r"local ENDS = {(.*?)}", LUA)

    assert set(re.findall(r"\w+(?= = true)", ends)) == {
        word for word, event in EVENT_CLASSES.items() if event.ends_step
    } | {"expanded"}


def test_docs_and_pages_have_the_types_as_they_are() -> None:
    for path, text in write_events.files().items():
        assert path.read_text("utf-8") == text, "run: python -m tests.acceptance.write_events"


def test_an_event_that_ends_a_step_ends_its_attempt_and_says_the_state() -> None:
    for event in EVENT_CLASSES.values():
        assert not event.ends_step or (event.ends_attempt and event.step_state in ("done", "failed", "skipped"))


def test_an_event_of_a_newer_version_is_read_and_changes_nothing() -> None:
    event = event_of(seq=3, run_id="r", at_ms=1, type="of_tomorrow", step="a", detail=1)

    view, line = apply_and_describe(RunView("r").with_plan(["a"]), event)

    assert type(event) is RunEvent
    assert (view.steps, line) == (RunView("r").with_plan(["a"]).steps, None)


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ({"error": {"code": "x", "message": "no"}, "step": "other", "worker": "w", "seq": 9, "type": "done"}, "no"),
        ({"error": {"code": "x", "message": "no", "of_tomorrow": 1}}, ""),
        ({"error": {"code": "x"}}, ""),
        ({"error": None}, ""),
        ({}, ""),
    ],
)
def test_no_detail_of_an_event_ends_the_reading_of_a_stream(detail: dict[str, JsonValue], message: str) -> None:
    event = event_of(detail, seq=3, run_id="r", at_ms=1, type="failed", step="a")

    assert (event.type, event.step, event.seq, event.explanation, event.ends_step) == ("failed", "a", 3, message, True)


def test_a_run_that_closed_in_a_way_of_a_newer_version_is_over() -> None:
    assert event_of({"status": "of_tomorrow"}, seq=3, run_id="r", at_ms=1, type="closed").ends_run


class StepPaused(RunEvent):
    """A type that somebody adds: this class is all it takes."""

    type: Literal["paused"] = "paused"
    step_state = "waiting_signal"
    ends_attempt = True
    voids_attempt = "it was paused"


def test_a_new_event_type_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(events.EVENT_CLASSES, "paused", StepPaused)
    started, paused = (
        event_of(seq=seq, run_id="r", at_ms=seq, type=name, step="a", attempt=1)
        for seq, name in ((1, "started"), (2, "paused"))
    )

    assert RunView("r").apply(started, paused).steps["a"].state == "waiting_signal"
    assert [attempt.end for attempt in attempts_of([started, paused], None)] == ["paused"]
    assert frame_of(paused, None) is None
    assert "`paused`" in "".join(write_events._rows())


def test_an_event_names_whoever_acted_and_marks_a_claim() -> None:
    own = {"seq": 1, "run_id": "r", "at_ms": 0}

    def closed(**detail: JsonValue) -> RunEvent:
        return event_of({"status": "cancelled", **detail}, type="closed", **own)

    said = [
        apply_and_describe(RunView("r"), event)[1]
        for event in (
            closed(by="billing", via="http", verified=True),
            closed(by="ann@ops", via="cli", verified=False),
            closed(by="ann"),
            closed(),
            closed(by="a\nb", verified=False),
        )
    ]

    assert [str(line).partition(" ")[2] for line in said] == [
        "cancelled r by billing",
        "cancelled r by ann@ops (claimed)",
        "cancelled r by ann",
        "cancelled r",
        "cancelled r by a b (claimed)",
    ]
