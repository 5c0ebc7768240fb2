"""A step whose task of another application is under way holds nothing; its first outcome counts, whoever records it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from cantata.flows.graph import Graph, Outcome, Step
from cantata.ledger import refused_steps
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, Begun, Swept
from cantata.ledger.redis.keys import run_key
from cantata.values import JsonValue, Usage
from tests.integration.features.forks.test_forks import Anew
from tests.integration.state import invariants
from tests.integration.state.play import Play, failed, fan_in, row, sent, wait, work
from tests.integration.state.test_ledger import lose_one_reply
from tests.integration.state.test_ledger_expansion import mapped
from tests.integration.state.test_parked import deadline

TIMEOUT_S, CHECK_S = 600.0, 5.0
DONE, RETRY, DISPATCHED = (
    Outcome(output="theirs"),
    Outcome(status="retry", retry_in_s=9),
    Outcome(status="dispatched", retry_in_s=CHECK_S),
)
OUTCOMES = [DONE, failed(), RETRY]


class TaskPlay(Play):
    """A run, and what sweeps have revoked."""

    def __init__(self, ledger: Ledger, *, timeout_s: float = 60) -> None:
        super().__init__(ledger, timeout_s=timeout_s)
        self._revoked: list[str] = []

    def sweep(self) -> Swept:
        """Sweep the run's shard."""
        swept = super().sweep()
        self._revoked += swept.revoked
        return swept

    def revoked(self) -> list[str]:
        """The tasks that sweeps were told to revoke, each as often as they were."""
        while self.ledger.redis.exists(f"{self.shard}:revoked", f"{self.shard}:clearing"):
            self.sweep()
        return self._revoked


def task(step_id: str, **spec: object) -> Step:
    """A step that calls a task."""
    return work(step_id, **{"timeout_s": TIMEOUT_S, **spec})


def dispatch(play: Play, step_id: str = "a") -> Begun:
    """Begin a step, and publish its task."""
    begun = play.begin(step_id)
    assert play.commit(begun, outcome=DISPATCHED).result == "ok"
    return begun


def elsewhere(play: Play, step_id: str = "a", attempt: int = 1) -> Begun:
    """A dispatched step, as a process sees it that did not publish its task."""
    found = play.ledger.steps.dispatched(play.run_id, step_id, attempt)
    assert found is not None, f"attempt {attempt} of {step_id} is over"
    return found[0]


def look_at(play: Play, step_id: str = "a", attempt: int = 1) -> float:
    """The seconds until a sweep has somebody look for the result of a task."""
    seconds, micros = play.ledger.redis.time()
    return (
        float(str(play.ledger.redis.zscore(f"{play.shard}:tasks", f"{play.run_id}|{attempt}|{step_id}"))) / 1000
        - seconds
        - micros / 1e6
    )


# nobody holds it


def test_a_dispatched_step_shows_its_task(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(task("a"))
    task_id: dict[str, JsonValue] = {"task_id": "cantata-run-1-a"}

    ledger.steps.commit(play.begin("a"), DISPATCHED, output="null", info=task_id)

    assert play.step("a").info == task_id


def test_a_dispatched_step_has_no_lease_and_is_not_recovered(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))

    begun = dispatch(play)

    assert ledger.leases.names() == []
    assert ledger.leases.renew([begun.lease]) == {begun.lease}
    swept = play.sweep()
    assert (swept.sends, swept.overdue, swept.lost, swept.tasks) == ((), (), 0, ())
    assert play.refusal("a") == "early", "a message that is delivered again"
    assert (play.words("a"), play.events("a")) == ("dispatched", ["started", "dispatched"])


def test_the_step_behind_it_in_its_message_is_begun_by_the_same_call(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("b"))
    begun = play.begin("a")
    lose_one_reply(monkeypatch, "commit")

    committed = play.commit(begun, outcome=DISPATCHED, ahead=Ahead("tasks", next_step="b"))

    assert (committed.result, committed.sends) == ("again", ())
    assert committed.begun is not None
    assert (committed.begun.step_id, committed.begun.attempt) == ("b", 1)
    assert (play.words("a", "b"), play.events("a")) == ("dispatched running", ["started", "dispatched"])


def test_a_task_that_was_published_by_a_process_that_died_is_one_of_a_lost_attempt(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))
    begun = play.begin("a")

    swept = play.lose_lease(begun)

    assert sent(swept) == ["a"]
    assert ledger.steps.dispatched("run", "a", 1) is None
    for outcome in (DISPATCHED, *OUTCOMES):
        assert play.commit(begun, outcome=outcome).result == "stale"
    assert elsewhere_commits(play, dispatch(play)) == "ok"


def elsewhere_commits(play: Play, begun: Begun, outcome: Outcome = DONE) -> str:
    """What a process is told that did not publish the task."""
    return play.commit(elsewhere(play, begun.step_id, begun.attempt), outcome=outcome).result


# the first outcome counts


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.status)
@pytest.mark.parametrize("is_own", [True, False])
def test_any_process_may_record_its_outcome(ledger: Ledger, outcome: Outcome, is_own: bool) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a", on_error="skip"), work("b", reads={"a": "a"}), edges=row("a", "b"))
    begun = dispatch(play)
    if not is_own:
        begun = elsewhere(play)
        assert (begun.owner, begun.attempt, begun.spec.timeout_s) == ("", 1, TIMEOUT_S)

    committed = play.commit(begun, outcome=outcome)

    assert (committed.result, sent(committed)) == ("ok", [] if outcome is RETRY else ["b"])
    assert play.events("a") == ["started", "dispatched", outcome.status]
    assert ledger.redis.exists(f"{play.shard}:tasks") == 0
    if outcome is not RETRY:
        assert play.begin("b").inputs == {"a": outcome.output}
    assert play.revoked() == []


def test_the_cheap_step_behind_it_is_begun_by_who_records_its_outcome(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("b", cheap=True), edges=row("a", "b"))
    dispatch(play)

    committed = ledger.steps.commit(
        elsewhere(play), DONE, output='"theirs"', info={}, ahead=Ahead("tools"), next_owner="another#1~1"
    )

    assert committed.begun is not None
    assert (committed.begun.step_id, committed.begun.worker) == ("b", "another#1")
    assert [lease.split("|")[2].rpartition("~")[0] for lease in ledger.leases.names()] == ["another#1~1"]


def unchanged(play: Play, late: Begun, outcome: Outcome) -> str:
    """What is said to an outcome that changes nothing."""
    before = _all_of(play)
    committed = play.commit(late, outcome=outcome)
    assert _all_of(play) == before
    assert (committed.sends, committed.begun) == ((), None)
    return committed.result


def _all_of(play: Play) -> tuple[object, ...]:
    return invariants.take(play.ledger.redis, play.run_id), sorted(
        cast("list[str]", play.ledger.redis.keys(f"{play.shard}:*"))
    )


@pytest.mark.parametrize("later", [*OUTCOMES, DISPATCHED], ids=lambda outcome: f"then {outcome.status}")
@pytest.mark.parametrize("first", OUTCOMES, ids=lambda outcome: outcome.status)
def test_a_later_outcome_is_refused(ledger: Ledger, first: Outcome, later: Outcome) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a", on_error="skip"), work("b"), edges=row("a", "b"))
    own = dispatch(play)
    other = elsewhere(play)
    assert play.commit(own, outcome=first).result == "ok"

    for late in (own, other):
        word = unchanged(play, late, later)

        assert word == ("again" if first is later is not RETRY else "stale")


@pytest.mark.parametrize("later", [*OUTCOMES, DISPATCHED], ids=lambda outcome: outcome.status)
def test_an_outcome_after_the_end_of_the_run_is_refused(ledger: Ledger, later: Outcome) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("c"))
    first, second = dispatch(play), dispatch(play, "c")
    ledger.runs.cancel("run")

    assert {unchanged(play, late, later) for late in (first, second)} == {"closed"}
    assert ledger.steps.dispatched("run", "a", 1) is None
    assert sorted(play.revoked()) == ["run|1|a", "run|1|c"]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.status)
def test_an_outcome_that_comes_before_the_task_is_known_to_be_published_counts(
    ledger: Ledger, outcome: Outcome
) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a", on_error="skip"), work("b"), edges=row("a", "b"))
    begun = play.begin("a")

    early = elsewhere(play)
    assert early == replace(begun, asked_at=early.asked_at, waited_s=None)
    assert play.commit(early, outcome=outcome).result == "ok"

    assert unchanged(play, begun, DISPATCHED) == "stale"
    assert play.events("a") == ["started", outcome.status]
    assert ledger.leases.names() == []


def test_a_failure_fails_the_run_and_says_why(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))
    dispatch(play)

    assert play.commit(elsewhere(play), outcome=failed("tool_error", "a")).run_status == "failed"

    error = ledger.reader.read("run").error
    assert error is not None
    assert (error.code, error.step) == ("tool_error", "a")
    assert play.revoked() == []


# another attempt


def test_an_attempt_that_failed_is_repeated_and_its_own_outcome_is_late(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a", retries=2))
    first = dispatch(play)
    play.commit(elsewhere(play), outcome=RETRY)
    assert play.refusal("a") == "early"
    assert sent(play.come_due("retry", "a")) == ["a"]

    second = play.begin("a")

    assert (second.attempt, second.failures) == (2, 1)
    assert unchanged(play, first, DONE) == "stale", "while the next one begins"
    assert ledger.steps.dispatched("run", "a", 1) is None
    assert play.commit(second, outcome=DISPATCHED).result == "ok"
    assert unchanged(play, first, DONE) == "stale", "while the next one is under way"
    assert ledger.steps.dispatched("run", "a", 1) is None
    assert play.commit(elsewhere(play, attempt=2), "again").run_status == "succeeded"
    assert play.output("a") == "again"
    assert play.revoked() == []


def test_a_step_that_may_run_once_only_is_left_to_a_person(ledger: Ledger) -> None:
    play = TaskPlay(ledger, timeout_s=60)
    play.plan(task("pay", at_most_once=True), work("b", reads={"pay": "pay"}), edges=row("pay", "b"))
    begun = dispatch(play, "pay")
    late = elsewhere(play, "pay")

    assert ledger.steps.release(late) == ()

    assert (play.words("pay"), play.events("pay")) == ("waiting_signal", ["started", "dispatched", "uncertain"])
    assert deadline(play) is None, "it waits for a person"
    assert play.revoked() == ["run|1|pay"]
    assert {unchanged(play, each, DONE) for each in (begun, late)} == {"stale"}
    word, ready = ledger.steps.signal("run", "pay", "paid")
    assert (word, [each.step_id for each in ready]) == ("taken", ["b"])
    assert play.begin("b").inputs == {"pay": "paid"}


def test_any_other_step_cannot_be_released_while_its_task_is_under_way(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("pay", at_most_once=True))
    under_way = dispatch(play), dispatch(play, "pay")

    for begun in under_way:
        ledger.steps.refuse("run", begun.step_id, 1, begun.owner, "this worker is too old")
    assert ledger.steps.release(elsewhere(play)) == ()

    assert play.words("a", "pay") == "dispatched dispatched"


def test_a_worker_that_does_not_know_a_field_of_a_dispatched_step_leaves_it_to_others(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))
    begun = dispatch(play)
    key = f"{run_key(None, 'run')}:steps"
    known = str(ledger.redis.hget(key, "a"))
    ledger.redis.hset(key, "a", known.replace("{", '{"invented_later":1,', 1))

    assert ledger.steps.dispatched("run", "a", 1) is None

    assert play.words("a") == "dispatched"
    assert "does not know field invented_later" in refused_steps.recent(ledger.redis)[0]
    ledger.redis.hset(key, "a", known)
    assert play.commit(begun).run_status == "succeeded"


# looking for results


def looked_for(play: Play, *, age_s: float) -> float:
    """Have a sweep look for the result of a task that has run for so long; the seconds until it is looked for again."""
    cells = f"{run_key(None, play.run_id)}:state"
    cell = str(play.ledger.redis.hget(cells, "a")).split(" ")
    seconds, micros = play.ledger.redis.time()
    cell[-1] = str(int((seconds + micros / 1e6 - age_s) * 1000))
    play.ledger.redis.hset(cells, "a", " ".join(cell))
    play.ledger.redis.zadd(f"{play.shard}:tasks", {f"{play.run_id}|1|a": 1.0}, xx=True)
    (swept,) = play.ledger.leases.sweep_all()
    assert swept.tasks == ("run|1|a",)
    return look_at(play)


def test_a_sweep_has_its_result_looked_for_the_less_often_the_older_it_is(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))
    dispatch(play)

    assert look_at(play) == pytest.approx(CHECK_S, abs=1)
    assert ledger.leases.sweep_all() == []
    assert looked_for(play, age_s=5) == pytest.approx(4, abs=1)
    assert ledger.leases.sweep_all() == [], "it was looked for just now"
    assert looked_for(play, age_s=40) == pytest.approx(20, abs=1)
    assert looked_for(play, age_s=200) == pytest.approx(60, abs=1)
    assert play.words("a") == "dispatched"


def test_its_result_is_looked_for_when_its_time_is_over(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))
    dispatch(play)

    assert looked_for(play, age_s=TIMEOUT_S - 30) == pytest.approx(30, abs=1)
    assert looked_for(play, age_s=TIMEOUT_S - 2) == pytest.approx(2, abs=1), "sooner than any other"
    assert looked_for(play, age_s=TIMEOUT_S + 1) == pytest.approx(60, abs=1), "nobody took it up"
    found = ledger.steps.dispatched("run", "a", 1)
    assert found is not None
    assert found[1] == pytest.approx(TIMEOUT_S + 1, abs=1)


def test_a_sweep_forgets_tasks_of_attempts_that_are_over(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), work("b"))
    dispatch(play)
    tasks = f"{play.shard}:tasks"
    ledger.redis.zadd(tasks, dict.fromkeys(("run|2|a", "run|1|b", "run|1|nothing", "gone|1|a"), 1.0))

    assert play.sweep().tasks == ()
    assert ledger.redis.zrange(tasks, 0, -1) == ["run|1|a"]


# nobody needs its result


def cancelled(play: Play) -> None:
    play.ledger.runs.cancel("run")


def timed_out(play: Play) -> None:
    play.come_due("deadline")


def failed_beside(play: Play) -> None:
    assert play.fail("c").run_status == "failed"


def exhausted(play: Play) -> None:
    assert play.fail("c", "budget").run_status == "exhausted"


@pytest.mark.parametrize("end", [cancelled, timed_out, failed_beside, exhausted])
def test_the_end_of_its_run_revokes_its_task_once(ledger: Ledger, end: Callable[[Play], None]) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("b"), work("c"), task("d"))
    for step_id in "ab":
        dispatch(play, step_id)
    play.begin("d")
    play.commit(elsewhere(play, "b"))

    end(play)

    assert play.revoked() == ["run|1|a"], "not that of one that is done, and of one that was not published"
    assert ledger.redis.exists(f"{play.shard}:tasks", f"{play.shard}:revoked") == 0
    assert play.words("a") == "skipped"


def test_a_sweep_of_all_shards_finds_what_is_to_be_revoked(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"))
    dispatch(play)
    ledger.runs.cancel("run")

    assert [swept.revoked for swept in ledger.leases.sweep_all()] == [("run|1|a",)]


def test_each_task_of_a_large_run_is_revoked_once(ledger: Ledger) -> None:
    play, ids = TaskPlay(ledger), [f"s{number}" for number in range(600)]
    play.plan(*map(task, ids), work("end"), edges=fan_in(tuple(ids), "end"))
    begun = play.begin(ids[0])
    for step_id in ids[1:]:
        begun = published(play, begun, step_id)
    play.commit(begun, outcome=DISPATCHED)

    ledger.runs.cancel("run")

    assert sorted(play.revoked()) == sorted(f"run|1|{step_id}" for step_id in ids)


def published(play: Play, begun: Begun, next_step: str) -> Begun:
    """Publish the task of a step, and begin the next of the message."""
    committed = play.commit(begun, outcome=DISPATCHED, ahead=Ahead("tools", next_step=next_step))
    assert committed.begun is not None
    return committed.begun


def test_a_member_that_is_late_has_its_task_revoked(ledger: Ledger) -> None:
    """Its model called the task; or the task is all that it is."""
    play = TaskPlay(ledger)
    play.plan(
        work("ann"),
        work("bob"),
        task("cleo"),
        work("join", deadline_s=60),
        edges=fan_in(("ann", "bob", "cleo"), "join"),
    )
    play.do("ann")
    play.do(
        "bob",
        fragment=Graph(
            steps=(task("bob/call", scope="bob"), work("bob/turn")), edges=row("bob/call", "bob/turn"), exit="bob/turn"
        ),
    )
    late = dispatch(play, "bob/call"), dispatch(play, "cleo")

    assert sent(play.come_due("join", "join")) == ["join"]

    assert sorted(play.revoked()) == ["run|1|bob/call", "run|1|cleo"]
    assert play.words("bob/call", "bob/turn", "cleo") == "skipped failed failed"
    assert {unchanged(play, each, RETRY) for each in late} == {"stale"}
    assert play.do("join").run_status == "succeeded"
    assert len(play.revoked()) == 2


def test_an_item_that_fails_has_the_tasks_of_the_others_revoked(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(work("map", on_error="skip"), work("b"), edges=row("map", "b"))
    play.do("map", fragment=mapped("map", (1, 2, 3, 4), window=3, gather={"on_error": "skip"}, timeout_s=TIMEOUT_S))
    for number in range(3):
        dispatch(play, f"map/{number}")
    play.commit(elsewhere(play, "map/0"))

    committed = play.commit(elsewhere(play, "map/1"), outcome=failed("tool_error", "map/1"))

    assert (committed.result, sent(committed)) == ("ok", ["b"])
    assert play.revoked() == ["run|1|map/2"]
    assert play.do("b").run_status == "succeeded"
    assert play.revoked() == ["run|1|map/2"]


def test_the_last_step_of_a_scope_that_fails_has_its_task_revoked(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    play.do("a", fragment=Graph(steps=(work("straggler", scope="a"), task("exit", on_error="skip")), exit="exit"))
    late = dispatch(play, "exit")

    assert sent(play.fail("straggler")) == ["b"]

    assert play.revoked() == ["run|1|exit"]
    assert play.words("straggler", "exit") == "failed failed"
    assert unchanged(play, late, RETRY) == "stale"


# the run


def test_the_clock_of_the_run_goes_on_while_a_task_is_under_way(ledger: Ledger) -> None:
    play = TaskPlay(ledger, timeout_s=60)
    play.plan(wait("w"), task("a"))
    begun = dispatch(play)

    assert deadline(play) is not None
    play.commit(begun, outcome=RETRY)
    assert deadline(play) is not None
    play.come_due("retry", "a")
    dispatch(play)
    assert deadline(play) is not None
    play.commit(elsewhere(play, attempt=2))

    assert deadline(play) is None, "nothing but a person is waited for"


def test_a_retry_of_its_run_calls_the_task_anew(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("b", reads={"a": "a"}), edges=row("a", "b"), terminals=("b",))
    dispatch(play)
    play.commit(elsewhere(play), "taken over")
    dispatch(play, "b")
    ledger.runs.cancel("run")
    assert play.revoked() == ["run|1|b"]

    anew = Anew(play)

    assert (anew.sends, anew.kept()) == (["b"], ["a"])
    begun = dispatch(anew, "b")
    assert (begun.attempt, begun.inputs) == (1, {"a": "taken over"})
    assert ledger.redis.zrange(f"{play.shard}:tasks", 0, -1) == [f"{anew.run_id}|1|b"]
    assert anew.commit(elsewhere(anew, "b"), "new").run_status == "succeeded"
    assert play.revoked() == ["run|1|b"], "nothing of the new run"


def test_a_fork_calls_the_tasks_behind_its_step_only(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("b"), edges=row("a", "b"), terminals=("b",))
    for step_id in "ab":
        dispatch(play, step_id)
        play.commit(elsewhere(play, step_id), step_id)

    anew = Anew(play, "b")
    dispatch(anew, "b")

    assert anew.kept() == ["a"]
    assert anew.commit(elsewhere(anew, "b"), "anew").run_status == "succeeded"
    assert (anew.output("a"), anew.output("b"), play.output("b")) == ("a", "anew", "b")


def test_a_task_counts_once_in_the_usage_of_its_run(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(task("a"), task("late"), work("end", quorum=1), edges=fan_in(("a", "late"), "end"))
    called = Outcome(usage=Usage(tool_calls=1))
    begun, late = dispatch(play), dispatch(play, "late")
    assert ledger.reader.read("run").usage.tool_calls == 0

    for each in (elsewhere(play), begun, begun):
        play.commit(each, outcome=called)
    assert ledger.reader.read("run").usage.tool_calls == 1
    for _ in range(2):
        assert play.commit(late, outcome=called).result == "stale", "though it did run"

    assert ledger.reader.read("run").usage.tool_calls == 2


def test_nothing_is_kept_of_it_but_its_run(ledger: Ledger) -> None:
    play = TaskPlay(ledger)
    play.plan(*(task(step_id, on_error="skip") for step_id in "abc"))
    for step_id, outcome in zip("abc", OUTCOMES, strict=True):
        dispatch(play, step_id)
        play.commit(elsewhere(play, step_id), outcome=outcome)
    play.come_due("retry", "c")
    dispatch(play, "c")
    assert play.commit(elsewhere(play, "c", 2)).run_status == "succeeded"

    shard = set(cast("list[str]", ledger.redis.keys(f"{play.shard}:*")))
    of_run = {key for key in shard if key.startswith(f"{play.shard}:run:")}
    assert all(ledger.redis.pttl(key) > 0 for key in of_run)
    assert {key.removeprefix(f"{play.shard}:").partition(":")[0] for key in shard - of_run} == {
        "runs",
        "finished",
        "definitions",
        "sizes",
        "totals",
        "bytes",
    }
