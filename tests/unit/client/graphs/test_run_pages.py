"""The attempts of a step."""

from __future__ import annotations

from itertools import count

from cantata.client.graphs.run_pages import attempts_of
from cantata.flows.events import RunEvent, event_of
from cantata.values import JsonValue


def events(*found: tuple[str, int | None] | tuple[str, int | None, dict[str, JsonValue]]) -> list[RunEvent]:
    """Events of a step, a second after each other."""
    return [
        event_of(
            seq=seq,
            run_id="run",
            at_ms=seq * 1000,
            type=kind,
            step="a",
            attempt=attempt,
            worker="w",
            **(detail[0] if detail else {}),
        )
        for seq, (kind, attempt, *detail) in zip(count(1), found, strict=False)
    ]


def test_each_attempt_has_its_end_and_its_error() -> None:
    failed: dict[str, JsonValue] = {"error": {"code": "tool_error", "message": "no"}}

    found = attempts_of(
        events(("started", 1), ("retry", 1, failed), ("started", 2), ("lost", 2), ("started", 3), ("done", 3)), None
    )

    assert [(each.attempt, each.end, each.started_at, each.ended_at) for each in found] == [
        (1, "retry", 1, 2),
        (2, "lost", 3, 4),
        (3, "done", 5, 6),
    ]
    assert [each.error and each.error.message for each in found] == ["no", "its worker w is gone", None]
    assert {each.worker for each in found} == {"w"}


def test_why_it_waited_or_was_handed_back_is_told() -> None:
    found = attempts_of(
        events(
            ("started", 1),
            ("rate_limited", 1, {"reason": "50 calls are under way"}),
            ("started", 2),
            ("refused", 2, {"message": "old"}),
        ),
        None,
    )

    assert [each.error and (each.error.code, each.error.message) for each in found] == [
        ("rate_limited", "50 calls are under way"),
        ("refused", "old"),
    ]


def test_an_attempt_that_runs_has_no_end_until_its_run_has() -> None:
    running = attempts_of(events(("started", 1)), None)
    ended = attempts_of(events(("started", 1)), 9.0)

    assert (running[0].end, running[0].ended_at) == (None, None)
    assert (ended[0].end, ended[0].ended_at) == ("closed", 9)


def test_a_step_that_was_taken_over_or_skipped_has_no_attempts() -> None:
    assert attempts_of(events(("done", None)), 9.0) == attempts_of(events(("skipped", None)), None) == []
