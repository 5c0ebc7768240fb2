"""The inbox has exactly the steps that wait for a person; an answer is checked, recorded with its author, and counts once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import pytest

from cantata.engine.fleet.clock_skip import bring_nearer
from cantata.errors import ConfigError
from cantata.features.forks import fork_store
from cantata.features.forks import rewind as rewinding
from cantata.features.inbox import inbox
from cantata.features.inbox.answers import check_answer
from cantata.features.inbox.inbox import InboxFilter
from cantata.flows.graph import Outcome, Step
from cantata.flows.waits import Inbox, InboxItem
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import run_key, shard_of
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter
from cantata.values import JsonValue
from tests.integration.features.forks.test_forks import made, near
from tests.integration.state.play import Play, row, wait, work

HOUR_S = 3600.0
SCHEMA: JsonValue = {
    "type": "object", "properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}}, "required": ["approved"],
}  # fmt: skip


def asks(step_id: str, **options: JsonValue) -> Step:
    return wait(step_id, params={"wait": options, "asks": {"amount": 3}})


def items(ledger: Ledger, **wanted: object) -> list[InboxItem]:
    """The whole inbox, read in pages of two."""
    found, after = [], None
    while True:
        page: Inbox = inbox.find_page(ledger, InboxFilter(**wanted), after=after, most=2)  # type: ignore[arg-type]  # a filter's fields
        assert len(page.items) <= 2
        found += page.items
        if (after := page.next) is None:
            return found


def steps(ledger: Ledger, **wanted: object) -> list[str]:
    return [item.step for item in items(ledger, **wanted)]


def parked(
    ledger: Ledger, run_id: str, *names: str, labels: dict[str, str] | None = None, **options: JsonValue
) -> Play:
    play = Play(ledger, run_id, labels=labels)
    play.plan(
        *(asks(name, **options) for name in names), work(f"after-{names[0]}"), edges=row(names[0], f"after-{names[0]}")
    )
    return play


def test_an_item_has_the_question_its_context_and_its_run(ledger: Ledger) -> None:
    play = Play(ledger, text="Pay 3 for tea", labels={"tenant": "shop", "team": "sales"})
    play.plan(
        wait(
            "pay",
            timeout_s=HOUR_S,
            params={"asks": {"amount": 3}, "wait": {"question": "Pay it?", "answer_schema": SCHEMA}},
        )
    )

    (item,) = items(ledger)

    assert (item.id, item.run_id, item.step, item.kind) == ("run/pay", "run", "pay", "wait")
    assert (item.question, item.context, item.answer_schema, item.who) == ("Pay it?", {"amount": 3}, SCHEMA, None)
    assert (item.title, item.run_kind, item.labels) == ("Pay 3 for tea", "turn", {"tenant": "shop", "team": "sales"})
    assert item.ends_at is not None
    assert abs(item.ends_at - item.since - HOUR_S) < 1
    assert inbox.find(ledger, "run", "pay") == item
    assert inbox.find(ledger, "run", "other") is None


@pytest.mark.parametrize(
    ("context", "question"), [({"prompt": "Ship?"}, "Ship?"), ({"question": "Ship?"}, "Ship?"), ({"a": 1}, "")]
)
def test_a_wait_without_a_question_of_its_own_asks_what_its_context_asks(
    ledger: Ledger, context: JsonValue, question: str
) -> None:
    Play(ledger).plan(wait("w", params={"asks": context}))

    assert [(item.question, item.context) for item in items(ledger)] == [(question, context)]


def test_pages_have_every_item_once_the_longest_waiting_first(ledger: Ledger) -> None:
    for number in range(7):
        parked(ledger, f"run{number}", "a", "b", "c")  # all of a run begin to wait in the same millisecond

    found = items(ledger)

    assert len({item.id for item in found}) == len(found) == 21
    assert [item.since for item in found] == sorted(item.since for item in found)


def in_shard_of(run_id: str) -> Iterator[str]:
    """Other run ids in the shard of one."""
    return (each for number in itertools.count() if shard_of(each := f"{run_id}-{number}") == shard_of(run_id))


def test_pages_go_on_where_a_bounded_search_ended(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "SCANNED_PER_CALL", 3)
    for number in range(4):
        parked(
            ledger,
            [*itertools.islice(in_shard_of("run"), 4)][number],
            "a",
            "b",
            "c",
            labels={"tenant": "one" if number == 3 else "two"},
        )

    assert len(items(ledger)) == len({item.id for item in items(ledger)}) == 12
    assert sorted(steps(ledger, tenant="one")) == ["a", "b", "c"]


def test_each_tenant_sees_its_own_and_filters_choose_by_label_and_answerer(ledger: Ledger) -> None:
    parked(ledger, "mine", "a", labels={"tenant": "one", "team": "red"}, who=["legal", "admin"])
    parked(ledger, "also", "b", labels={"tenant": "one", "team": "blue"})
    parked(ledger, "theirs", "c", labels={"tenant": "two", "team": "red"})

    assert sorted(steps(ledger)) == ["a", "b", "c"]
    assert sorted(steps(ledger, tenant="one")) == ["a", "b"]
    assert steps(ledger, tenant="") == []
    assert sorted(steps(ledger, labels={"team": "red"})) == ["a", "c"]
    assert sorted(steps(ledger, who="legal")) == ["a", "b", "c"], "a step without `who` is for all"
    assert sorted(steps(ledger, who="sales")) == ["b", "c"]


def test_a_position_that_no_page_gave_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="'soon' is not a position in the inbox; use `next` of an earlier page"):
        inbox.find_page(ledger, InboxFilter(), after="soon")


# every end of a wait

ENDS: dict[str, Callable[[Play], object]] = {
    "answer": lambda play: play.ledger.steps.signal("run", "w", True),
    "time-out": lambda play: play.come_due("wait", "w"),
    "cancel": lambda play: play.ledger.runs.cancel("run"),
    "failure of another": lambda play: (play.fail("other"), play.sweep()),
    "end of the run's time": lambda play: play.come_due("deadline"),
    "a late join": lambda play: play.come_due("join", "join"),
}


@pytest.mark.parametrize("end", ENDS)
def test_status_and_inbox_agree_after_every_end(ledger: Ledger, end: str) -> None:
    play = Play(ledger)
    asked = wait("w", timeout_s=HOUR_S, params={"wait": {"remind_after_s": 60, "escalate_after_s": 90}})
    play.plan(asked, work("other"), work("join", deadline_s=9), edges=row("w", "join"))
    assert (play.status, steps(ledger)) == ("running", ["w"]), "it waits, and works too"

    ENDS[end](play)
    play.sweep()

    assert steps(ledger) == []
    assert play.status != "waiting"
    timers = {str(member).partition("|")[0] for member in ledger.redis.zrange(f"{play.shard}:due", 0, -1)}
    assert timers.isdisjoint({"wait", "remind", "escalate"}), "its timers are gone"


def test_a_run_waits_while_only_people_can_go_on_with_it(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(wait("v"), wait("w"), work("a"), work("b"), edges=row("v", "b"))
    seen = [play.status]
    play.do("a")
    seen += [play.status, ledger.reader.read("run").status]
    assert [run.status for run in listing.find_page(ledger, RunFilter(statuses=("waiting",))).runs] == ["waiting"]
    assert listing.find_page(ledger, RunFilter(statuses=("running",))).runs == []

    ledger.steps.signal("run", "v", True)
    seen.append(play.status)
    play.do("b")
    seen.append(play.status)
    ledger.steps.signal("run", "w", True)

    assert [*seen, play.status] == ["running", "waiting", "waiting", "running", "waiting", "succeeded"]
    assert listing.find_page(ledger, RunFilter(statuses=("waiting",))).runs == []


def test_a_sleep_is_no_wait_for_a_person(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(wait("nap", timeout_s=HOUR_S, params={"sleeps": True}))

    assert (play.status, steps(ledger)) == ("running", [])


def test_a_step_whose_outcome_is_unknown_is_in_the_inbox(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("pay", at_most_once=True))
    play.lose_lease(play.begin("pay"))

    (item,) = items(ledger)

    assert (item.step, item.kind, play.status) == ("pay", "work", "waiting")
    assert "its outcome is unknown" in item.question


def test_a_wait_whose_answer_came_before_it_is_never_listed(ledger: Ledger) -> None:
    play = Play(ledger)
    ledger.steps.signal("run", "w", 7, by="anna")
    play.plan(work("a"), wait("w"), work("b"), edges=row("a", "w", "b"))
    play.do("a")

    assert (play.step("w").output, play.step("w").info, steps(ledger), play.status) == (
        7,
        {"answered_by": "anna"},
        [],
        "running",
    )


def test_a_fork_waits_again(ledger: Ledger) -> None:
    play = parked(ledger, "run", "w")
    ledger.runs.cancel("run")
    play.sweep()

    made(ledger, near("run"), rewinding.retry(fork_store.read(ledger, "run")))

    assert [item.run_id for item in items(ledger)] == [near("run")]
    assert ledger.runs.status(near("run")) == "waiting"


# reminders and escalations


def test_a_reminder_and_an_escalation_fire_once_each_and_change_who_may_answer(ledger: Ledger) -> None:
    play = parked(ledger, "run", "w", who=["legal"], remind_after_s=60, escalate_after_s=HOUR_S, escalate_to=["boss"])
    assert steps(ledger, who="boss") == []

    bring_nearer(ledger.redis, 60)
    play.sweep()
    play.sweep()
    assert play.events("w") == ["waiting", "reminded"]

    bring_nearer(ledger.redis, HOUR_S - 60)
    play.sweep()
    play.sweep()
    assert play.events("w") == ["waiting", "reminded", "escalated"]
    (item,) = items(ledger, who="boss")
    assert item.who == ["legal", "boss"]
    assert item.labels["escalated_to"] == "boss"
    assert item.reminded_at is not None
    assert item.escalated_at is not None


def test_an_answered_wait_reminds_nobody(ledger: Ledger) -> None:
    play = parked(ledger, "run", "w", remind_after_s=60, escalate_after_s=90)
    ledger.steps.signal("run", "w", True)

    bring_nearer(ledger.redis, 100)
    play.sweep()

    assert play.events("w") == ["waiting", "signal", "done"]


# answers


def check(
    value: JsonValue,
    groups: list[str] | None,
    step: str,
    params: Mapping[str, JsonValue] | None,
    info: Mapping[str, JsonValue],
) -> str | None:
    return None if params is None else check_answer(value, groups, step, params, info)


def signal(ledger: Ledger, value: JsonValue, groups: list[str] | None = None, by: str = "") -> str:
    return ledger.steps.signal("run", "w", value, by=by, groups=groups, check=partial(check, value, groups))[0]


@pytest.mark.parametrize("is_early", [False, True])
def test_an_answer_that_does_not_fit_is_refused_with_the_field_before_it_reaches_the_run(
    ledger: Ledger, *, is_early: bool
) -> None:
    play = Play(ledger)
    play.plan(work("a"), asks("w", answer_schema=SCHEMA), edges=row("a", "w"))
    if not is_early:
        play.do("a")

    with pytest.raises(ConfigError, match=r"answer to 'w': value.approved: 'yes' is not of type 'boolean'") as refused:
        signal(ledger, {"approved": "yes"})

    assert refused.value.code == "bad_answer"
    assert "signal" not in play.events("w")
    assert signal(ledger, {"approved": True}) == ("kept" if is_early else "taken")


def test_only_those_who_are_named_may_answer_and_after_an_escalation_others_too(ledger: Ledger) -> None:
    play = parked(ledger, "run", "w", who=["legal"], escalate_after_s=60, escalate_to=["boss"])

    assert signal(ledger, 1, ["sales", "boss"]) == "not_allowed"
    play.come_due("escalate", "w")
    assert signal(ledger, 1, ["boss"], by="bo") == "taken"

    assert play.step("w").info["answered_by"] == "bo"


def test_nobody_answers_a_step_whose_conditions_cannot_be_read(ledger: Ledger) -> None:
    parked(ledger, "run", "w", who=["legal"])
    key = f"{run_key(ledger.redis, 'run')}:steps"
    spec = json.loads(str(ledger.redis.hget(key, "w")))
    spec["params"]["deep"] = json.loads("[" * 300 + "]" * 300)  # as an older version may have stored
    ledger.redis.hset(key, "w", json.dumps(spec))

    for groups in (["sales"], ["legal"], None):
        with pytest.raises(ConfigError, match="it is not known who may answer it; cancel the run"):
            signal(ledger, 1, groups)

    assert ledger.reader.answering("run", ["w"]) == ["w"]
    assert ledger.runs.cancel("run") == "cancelled"


@pytest.mark.parametrize(
    ("options", "groups", "is_taken"),
    [
        ({"who": ["legal"]}, ["sales"], False), ({"who": ["legal"]}, ["legal"], True), ({"who": ["legal"]}, None, True),
        ({"answer_schema": {"type": "integer"}}, None, False), ({}, [], True),
    ],
)  # fmt: skip
def test_nobody_answers_what_is_for_others_by_being_early(
    ledger: Ledger, options: dict[str, JsonValue], groups: list[str] | None, *, is_taken: bool
) -> None:
    play = Play(ledger)
    assert ledger.steps.signal("run", "w", 1, by="sam", groups=groups)[0] == "kept"

    play.plan(asks("w", **options), work("a"))

    assert (play.step("w").output, steps(ledger)) == ((1, []) if is_taken else (None, ["w"]))
    assert ("warning" in play.events("w")) != is_taken


def test_an_early_answer_to_a_step_that_can_be_checked_beforehand_counts(ledger: Ledger) -> None:
    play = Play(ledger)
    assert ledger.steps.signal("run", "w", 1, groups=[], check=lambda step, params, info: "")[0] == "kept"

    play.plan(asks("w", who=["legal"], answer_schema={"type": "integer"}), work("a"))

    assert (play.step("w").output, steps(ledger)) == (1, [])


def test_the_author_of_an_answer_is_recorded_and_told(ledger: Ledger) -> None:
    play = parked(ledger, "run", "w")

    assert signal(ledger, True, by="anna\nlegal") == "taken"

    assert play.step("w").info == {"answered_by": "anna legal"}
    log = cast("list[tuple[str, dict[str, str]]]", ledger.redis.xrange(f"{play.shard}:run:run:log"))
    assert [entry["d"] for _, entry in log if entry["t"] == "signal"] == ['{"by":"anna legal"}']


def test_of_racing_answers_one_is_taken_and_the_others_are_told(ledger: Ledger) -> None:
    parked(ledger, "run", "w", answer_schema={"type": "integer"})

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: signal(ledger, number, by=str(number)), range(8)))

    assert sorted(found) == ["over"] * 7 + ["taken"]
    step = ledger.reader.read("run").steps["w"]
    assert step.output == found.index("taken")
    assert step.info["answered_by"] == str(step.output)


def test_an_answer_to_a_wait_of_a_workflow_that_is_over_is_not_kept_for_the_next_of_its_name(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(wait("flow/0.wait/ok", params={"repeats": True}), work("a"), edges=row("flow/0.wait/ok", "a"))

    assert ledger.steps.signal("run", "flow/0.wait/ok", 1)[0] == "taken"
    assert ledger.steps.signal("run", "flow/0.wait/ok", 2)[0] == "over"
    play.commit(play.begin("a"), outcome=Outcome(output=1))
