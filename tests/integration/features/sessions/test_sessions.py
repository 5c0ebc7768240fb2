"""Conversations in the ledger: the turns of a session one after the other, and what is written down when each ends."""

from __future__ import annotations

import itertools
import threading
from typing import cast

import pytest

from cantata.features.sessions.sessions import Sessions
from cantata.ledger import conversations
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.values import JsonValue
from tests.integration.state.play import Play, sent, wait, work
from tests.waiting import until


def place(
    name: str = "chat", *, tenant: str = "", max_entries: int = 100, max_waiting: int = 3, keep_s: float = 60
) -> RunSession:
    return RunSession(conversations.scoped(tenant, name), keep_s, max_entries, max_waiting)


def turns(ledger: Ledger, texts: list[str], where: RunSession | None = None) -> list[Play]:
    """Turns of one session, taken in one after the other."""
    where = where or place()
    shard = conversations.shard_of_session(where.name)
    ids = (run_id for number in itertools.count() if shard_of(run_id := f"run{number}") == shard)
    taken = set(cast("list[str]", ledger.redis.zrange(f"cantata:{{{shard}}}:runs", 0, -1)))
    return [Play(ledger, next(each for each in ids if each not in taken), text=text, session=where) for text in texts]


def answer(play: Play, output: JsonValue, *, agent: str = "ann") -> list[str]:
    """Play a turn to its end; answers the runs whose turn came by it."""
    play.plan(work("answer", work=f"agents:{agent}"), terminals=("answer",))
    return [run_id for run_id, _ in play.do("answer", output).next_runs]


def said(ledger: Ledger, session: str = "chat", tenant: str = "") -> list[tuple[str, str, str | None]]:
    return [(entry.role, entry.content, entry.agent) for entry in Sessions(ledger, tenant).history(session)]


def test_turns_of_a_session_have_their_turns_one_after_the_other(ledger: Ledger) -> None:
    first, second, third = turns(ledger, ["one", "two", "three"])
    assert [play.accepted.result for play in (first, second, third)] == ["new", "queued", "queued"]
    assert second.refusal("@start") == "early"
    assert answer(first, "1") == [second.run_id]
    assert third.refusal("@start") == "early"
    assert answer(second, "2") == [third.run_id]
    assert answer(third, "3") == []
    assert said(ledger) == [
        ("user", "one", None),
        ("assistant", "1", "ann"),
        ("user", "two", None),
        ("assistant", "2", "ann"),
        ("user", "three", None),
        ("assistant", "3", "ann"),
    ]


def test_sessions_do_not_wait_for_each_other(ledger: Ledger) -> None:
    (first,) = turns(ledger, ["one"])
    (second,) = turns(ledger, ["two"], place("other"))
    assert (first.accepted.result, second.accepted.result) == ("new", "new")


def test_a_turn_that_is_told_to_start_twice_starts_once(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    again = Play(ledger, second.run_id, text="two", session=place())
    assert again.accepted.result == "known"
    assert Sessions(ledger).waiting("chat") == [first.run_id, second.run_id]


def test_a_message_that_comes_before_its_turn_leaves_it_waiting(ledger: Ledger) -> None:
    _, second = turns(ledger, ["one", "two"])
    assert second.refusal("@start") == "early"
    assert second.status == "accepted"


def test_a_failed_turn_is_written_down_as_one_and_the_next_has_its_turn(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    first.plan(work("answer"), terminals=("answer",))
    committed = first.fail("answer")
    assert [run_id for run_id, _ in committed.next_runs] == [second.run_id]
    assert said(ledger) == [("user", "one", None), ("system_error", "it broke", None)]


def test_a_turn_that_is_cancelled_lets_the_next_have_its_turn(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    ledger.runs.cancel(first.run_id)
    assert second.begin("@start")
    assert said(ledger) == [("user", "one", None), ("system_error", "the run was cancelled", None)]


def test_a_turn_whose_time_is_over_lets_the_next_have_its_turn(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    swept = first.come_due("deadline")
    assert [run_id for run_id, _ in swept.sends] == [second.run_id]
    assert sent(swept) == ["@start"]


def test_the_time_of_a_turn_begins_with_its_turn(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    timer = f"deadline|{second.run_id}|"
    first.plan(wait("w"), terminals=("w",))
    assert ledger.redis.zscore(f"{second.shard}:due", timer) is None

    ledger.steps.signal(first.run_id, "w", "yes")

    assert ledger.redis.zscore(f"{second.shard}:due", timer) is not None


def test_a_message_lost_with_the_worker_that_ended_a_turn_is_sent_again(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    answer(first, "1")
    swept = second.lose_message("@start")
    assert [(step.run_id, step.step_id) for step in swept.overdue] == [(second.run_id, "@start")]


def test_a_turn_cancelled_while_it_waits_leaves_no_trace(ledger: Ledger) -> None:
    first, second, third = turns(ledger, ["one", "two", "three"])
    ledger.runs.cancel(second.run_id)
    assert said(ledger) == []
    assert third.refusal("@start") == "early"
    assert answer(first, "1") == [third.run_id]


def test_a_run_that_was_ended_by_an_older_worker_does_not_hold_up_its_session(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    queue = f"{first.shard}:session:/chat:queue"
    ledger.runs.cancel(first.run_id)
    ledger.redis.lpush(queue, first.run_id)  # as one leaves it that knows no sessions
    ledger.redis.hset(f"{first.shard}:run:{second.run_id}:state", "@start", "waiting 0 0 1 0 0 0 -")
    ledger.redis.zrem(f"{first.shard}:ready", f"{second.run_id}|@start")
    (third,) = turns(ledger, ["three"])
    assert third.accepted.result == "queued"
    assert Sessions(ledger).waiting("chat") == [second.run_id, third.run_id]
    assert answer(second, "2") == [third.run_id]


def test_so_many_may_wait(ledger: Ledger) -> None:
    plays = turns(ledger, ["one", "two", "three", "four", "five"])
    assert [play.accepted.result for play in plays] == ["new", "queued", "queued", "queued", "full"]
    assert len(Sessions(ledger).waiting("chat")) == 4


def test_the_oldest_entries_go(ledger: Ledger) -> None:
    where = place(max_entries=3)
    for number, play in enumerate(turns(ledger, ["one", "two"], where)):
        answer(play, str(number))
    assert said(ledger) == [("assistant", "0", "ann"), ("user", "two", None), ("assistant", "1", "ann")]


def test_an_answer_that_is_no_text_is_written_down_as_json(ledger: Ledger) -> None:
    (only,) = turns(ledger, ["pick"])
    answer(only, {"pick": "a"})
    assert said(ledger)[1] == ("assistant", '{"pick":"a"}', "ann")


def test_an_empty_answer_is_not_written_down(ledger: Ledger) -> None:
    (only,) = turns(ledger, ["one"])
    answer(only, "")
    assert said(ledger) == [("user", "one", None)]


@pytest.mark.parametrize("letter", ["a", "ä", "字", "🎼"])
def test_a_long_text_is_cut_between_two_characters(ledger: Ledger, letter: str) -> None:
    (only,) = turns(ledger, ["one"])
    answer(only, "x" + letter * 40_000)
    content = said(ledger)[1][1]
    assert content.endswith(f"{letter}…")
    assert 32_760 < len(content.encode()) <= 32_768 + 3


@pytest.mark.parametrize("name", ["a b", "a/b", "{1}", "a|b:c", "ü-字-🎼", "%2F", "..", "x" * 200])
def test_any_name_that_can_be_printed_will_do(ledger: Ledger, name: str) -> None:
    (only,) = turns(ledger, ["one"], place(name))
    answer(only, "1")
    assert len(said(ledger, name)) == 2
    assert [each.session for each in Sessions(ledger).list()] == [name]


@pytest.mark.parametrize(
    ("name", "why"), [("", "empty"), (" ", "empty"), ("a\nb", "printed"), ("x" * 201, "201 characters")]
)
def test_a_name_that_cannot_be_one_is_refused(ledger: Ledger, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Sessions(ledger).history(name)


def test_tenants_do_not_see_each_other(ledger: Ledger) -> None:
    (only,) = turns(ledger, ["one"], place(tenant="acme"))
    answer(only, "1")
    assert said(ledger) == []
    assert Sessions(ledger).list() == []
    assert [each.session for each in Sessions(ledger).of("acme").list()] == ["chat"]
    assert Sessions(ledger).clear("chat") == 0
    assert len(said(ledger, tenant="acme")) == 2


def test_the_list_tells_how_much_there_is_newest_first(ledger: Ledger) -> None:
    (first,) = turns(ledger, ["one"], place("old"))
    answer(first, "1")
    turns(ledger, ["two", "three"], place("new"))
    listed = [(each.session, each.entries, each.waiting) for each in Sessions(ledger).list()]
    assert sorted(listed) == [("new", 0, 2), ("old", 2, 0)]


def test_a_session_that_is_kept_shortly_leaves_those_in_the_list_that_are_kept_long(ledger: Ledger) -> None:
    shard = conversations.shard_of_session("/long")
    beside = (
        name
        for number in itertools.count()
        if conversations.shard_of_session(f"/{(name := f'short{number}')}") == shard
    )
    kept_long, kept_shortly, last = (
        place("long", keep_s=60),
        place(next(beside), keep_s=0.01),
        place(next(beside), keep_s=0.01),
    )
    for where in (kept_long, kept_shortly):
        (only,) = turns(ledger, ["one"], where)
        answer(only, "1")
    while len(Sessions(ledger).list()) > 1:
        pass
    (only,) = turns(ledger, ["one"], last)
    assert [each.session for each in Sessions(ledger).list()][1:] == ["long"]
    assert ledger.redis.zrange(f"cantata:{{{shard}}}:sessions", 0, -1) == ["/long", last.name]


@pytest.mark.slow("it is about many sessions")
def test_sessions_that_are_kept_for_long_do_not_keep_those_behind_them_in_the_list(ledger: Ledger) -> None:
    """Sixty that are kept, and behind them sixty of which nothing is kept any more."""
    shard = conversations.shard_of_session("/last")
    names = list(
        itertools.islice((f"s{n}" for n in itertools.count() if conversations.shard_of_session(f"/s{n}") == shard), 120)
    )
    key = f"{shard_key(None, shard)}:sessions"
    ledger.redis.zadd(key, {f"/{name}": at for at, name in enumerate(names)})
    for name in names[:60]:
        ledger.redis.rpush(f"{shard_key(None, shard)}:session:/{name}:history", "{}")

    def gone() -> bool:
        (turn,) = turns(ledger, ["one"], place("last"))
        answer(turn, "1")
        return ledger.redis.zcard(key) == 61

    until(gone, "the end of every old session of which nothing is kept")
    assert set(cast("list[str]", ledger.redis.zrange(key, 0, -1))) == {"/last", *(f"/{name}" for name in names[:60])}


def test_what_was_said_can_be_forgotten(ledger: Ledger) -> None:
    first, second = turns(ledger, ["one", "two"])
    answer(first, "1")
    assert Sessions(ledger).clear("chat") == 2
    answer(second, "2")
    assert [content for _, content, _ in said(ledger)] == ["two", "2"]


def test_a_long_conversation_is_read_from_its_end(ledger: Ledger) -> None:
    for start in range(0, 130, 2):
        (only,) = turns(ledger, [str(start)], place(max_entries=1000))
        answer(only, str(start + 1))
    everything = [int(entry.content) for entry in Sessions(ledger).history("chat")]
    assert everything == list(range(130))
    assert [entry.content for entry in Sessions(ledger).history("chat", most=3)] == ["127", "128", "129"]


def test_a_conversation_is_read_as_it_was_at_one_moment(ledger: Ledger) -> None:
    where = place(max_entries=1000)
    for number in range(130):
        (only,) = turns(ledger, [f"{number}"], where)
        answer(only, "")

    def go_on() -> None:
        for number in range(130, 200):
            (only,) = turns(ledger, [f"{number}"], where)
            answer(only, "")

    writer = threading.Thread(target=go_on)
    writer.start()
    while writer.is_alive():
        said_now = [int(content) for _, content, _ in said(ledger)]
        assert said_now == list(range(len(said_now)))
    writer.join()


def test_a_conversation_goes_when_its_time_is_over(ledger: Ledger) -> None:
    (only,) = turns(ledger, ["one"], place(keep_s=0.05))
    answer(only, "1")
    key = f"cantata:{{{conversations.shard_of_session('/chat')}}}:session:/chat:history"
    while ledger.redis.exists(key):
        pass
    assert Sessions(ledger).history("chat") == []
    assert Sessions(ledger).list() == []
