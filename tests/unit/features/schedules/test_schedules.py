"""Times of schedules: as people expect them when clocks change, strictly increasing, each looked at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.features.schedules.times import MAX_FIRED, MAX_TIMES, delay_ms, due_times, first_time, request_at, times
from cantata.flows.schedules import Schedule

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
HOUR_MS = 3_600_000
YEAR_2026_MS = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def schedule(**fields: Any) -> Schedule:
    """A schedule of a turn."""
    return Schedule.model_validate({"turn": {"text": "now: {scheduled_at}"}, **fields})


def shown(of: Schedule, after: datetime, count: int) -> list[str]:
    """The first times after a moment, in the schedule's time zone: hour, minute and offset from UTC."""
    found = islice(times(of, round(after.timestamp() * 1000)), count)
    return [datetime.fromtimestamp(ms / 1000, UTC).astimezone(of.zone).strftime("%d %H:%M%z") for ms in found]


DAILY, HOURLY = "30 2 * * *", "30 * * * *"


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # Spring: a time that does not exist is run at the change, and hours go on.
        (DAILY, BERLIN, "2026-03-28T12:00", ["29 03:00+0200", "30 02:30+0200"]),
        (DAILY, NEW_YORK, "2026-03-07T12:00", ["08 03:00-0400", "09 02:30-0400"]),
        (HOURLY, BERLIN, "2026-03-29T00:45", ["29 01:30+0100", "29 03:30+0200", "29 04:30+0200"]),
        (HOURLY, NEW_YORK, "2026-03-08T00:45", ["08 01:30-0500", "08 03:30-0400", "08 04:30-0400"]),
        # Autumn: a time that there is twice is run once, an hour that there is twice is run twice.
        (DAILY, BERLIN, "2026-10-24T12:00", ["25 02:30+0200", "26 02:30+0100"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["01 01:30-0400", "02 01:30-0500"]),
        (HOURLY, BERLIN, "2026-10-25T01:45", ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
        (HOURLY, NEW_YORK, "2026-11-01T00:45", ["01 01:30-0400", "01 01:30-0500", "01 02:30-0500"]),
        # Other times keep their hour on the clock on the wall.
        ("0 7 * * *", BERLIN, "2026-03-28T12:00", ["29 07:00+0200", "30 07:00+0200"]),
        ("0 7 * * mon-fri", BERLIN, "2026-10-23T12:00", ["26 07:00+0100", "27 07:00+0100"]),
    ],
)
def test_a_cron_expression_follows_the_clock_on_the_wall(
    cron: str, zone: ZoneInfo, after: str, expected: list[str]
) -> None:
    assert (
        shown(schedule(cron=cron, timezone=zone.key), datetime.fromisoformat(after).replace(tzinfo=zone), len(expected))
        == expected
    )


@pytest.mark.parametrize("moment", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_an_interval_is_always_as_long(moment: datetime) -> None:
    found = list(islice(times(schedule(every="1h", timezone="Europe/Berlin"), round(moment.timestamp() * 1000)), 30))

    assert {b - a for a, b in pairwise(found)} == {HOUR_MS}


def test_a_time_of_an_ambiguous_hour_is_never_behind_the_one_before() -> None:
    of = schedule(cron="0,30 1-3 * * *", timezone="Europe/Berlin")
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)

    assert shown(of, second, 2) == ["25 03:00+0100", "25 03:30+0100"]


CRONS = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0,30 1-3 * * *",
        "15 */3 * * *",
        "0 0 1 * *",
        "0 12 * * sun",
        "59 23 31 dec *",
        "0 2,3 * * *",
    ]
)  # fmt: skip
SCHEDULES = st.one_of(
    st.builds(
        lambda cron, zone: schedule(cron=cron, timezone=zone),
        CRONS,
        st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    ),
    st.builds(lambda seconds: schedule(every=seconds), st.integers(1, 10**7)),
)
MOMENTS = st.one_of(
    st.integers(YEAR_2026_MS, YEAR_2026_MS + 400 * 24 * HOUR_MS),
    st.sampled_from(
        [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)]
    ).flatmap(lambda day: st.integers(0, 12 * HOUR_MS).map(lambda ms: round(day.timestamp() * 1000) + ms)),
)


@given(SCHEDULES, MOMENTS)
def test_times_increase_and_do_not_depend_on_where_one_begins(of: Schedule, after_ms: int) -> None:
    found = list(islice(times(of, after_ms), 8))

    assert all(a < b for a, b in pairwise([after_ms, *found]))
    for index, at_ms in enumerate(found[:-1]):
        assert next(times(of, at_ms)) == found[index + 1]
    assert next(times(of, found[0] - 1)) == found[0]


@given(
    SCHEDULES, MOMENTS, st.integers(0, 30 * HOUR_MS), st.sampled_from([10, 600, 7200]), st.sampled_from([0, 60, 7200])
)
def test_each_time_that_has_come_is_run_or_missed_once(
    of: Schedule, since_ms: int, passed_ms: int, window_s: int, jitter_s: int
) -> None:
    of = of.model_copy(update={"catch_up": float(window_s), "jitter": float(jitter_s)})
    now_ms, at_ms = since_ms + passed_ms, next(times(of, since_ms))
    fired, missed = list[int](), 0
    while True:
        due = due_times(of, "/a", at_ms, now_ms)
        fired, missed = [*fired, *due.fires], missed + due.missed
        assert len(due.fires) <= MAX_FIRED
        assert len(due.fires) + due.missed <= MAX_TIMES
        if due.next_ms == at_ms:
            break
        assert due.next_ms is not None
        at_ms = due.next_ms
        if len(fired) + missed > 2000:  # enough of a short interval
            break

    everything = list(islice(times(of, since_ms), len(fired) + missed + 1))
    assert at_ms == everything[-1]
    assert set(fired) <= set(everything[:-1])
    assert len(set(fired)) + missed == len(everything) - 1
    assert all(now_ms - each - delay_ms(of, "/a", each) <= window_s * 1000 for each in fired)


@given(st.integers(1, 10**13), st.floats(0, 86_400))
def test_jitter_is_the_same_for_a_time_and_within_its_bounds(at_ms: int, jitter_s: float) -> None:
    of = schedule(every="1h", jitter=jitter_s)

    assert 0 <= delay_ms(of, "/a", at_ms) <= jitter_s * 1000
    assert delay_ms(of, "/a", at_ms) == delay_ms(of, "/a", at_ms)


def test_jitter_spreads_schedules_of_the_same_time() -> None:
    of = schedule(every="1h", jitter="10m")

    assert len({delay_ms(of, f"/{number}", YEAR_2026_MS) // 60_000 for number in range(200)}) == 10


@pytest.mark.parametrize(("late_s", "is_run"), [(-60, True), (59, True), (61, False)])
def test_one_date_that_has_passed_is_run_within_its_window_only(late_s: int, is_run: bool) -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    of = schedule(at=at.isoformat(), catch_up=60)

    first = first_time(of, round((at + timedelta(seconds=late_s)).timestamp() * 1000))

    assert first == (of.at_ms if is_run else None)
    assert due_times(of, "/a", of.at_ms or 0, (of.at_ms or 0) + 1) == ([of.at_ms], 0, None)


def test_placeholders_are_in_the_time_zone_of_the_schedule_and_others_stay() -> None:
    at_ms = round(datetime(2026, 3, 29, 5, 0, tzinfo=UTC).timestamp() * 1000)
    turn = schedule(
        every="1h", timezone="Europe/Berlin", turn={"text": "{schedule} {date} {time} {weekday} {other} {{date}}"}
    )
    chain = schedule(every="1h", turn=None, chain="a", input={"day": "{date}", "deep": [{"at": "{timestamp}"}, 7]})

    text = request_at(turn, "report", {"text": turn.turn and turn.turn.text}, at_ms)
    request = request_at(chain, "a", {"nodes": [{"node_id": "{date}"}], "initial_input": chain.input}, at_ms)

    assert text == {"text": "report 2026-03-29 07:00 sunday {other} {2026-03-29}"}
    assert request["initial_input"] == {"day": "2026-03-29", "deep": [{"at": str(at_ms // 1000)}, 7]}
    assert request["nodes"] == [{"node_id": "{date}"}], "only the input has placeholders"


def test_the_input_of_a_workflow_in_python_is_that_of_its_node() -> None:
    of = schedule(every="1h", turn=None, workflow="close_books", input={"day": "{date}"})

    found = request_at(
        of, "a", {"nodes": [{"node_id": "close_books", "input": {"day": "{date}"}}], "entry_node": "close_books"}, 0
    )

    assert found == {"nodes": [{"node_id": "close_books", "input": {"day": "1970-01-01"}}], "entry_node": "close_books"}
