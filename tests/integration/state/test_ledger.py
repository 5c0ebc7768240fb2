"""The ledger's promises about single steps and whole runs: each told twice, late, and out of order."""

from __future__ import annotations

import json
from itertools import count
from typing import cast

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from cantata.engine.limits import daily_costs
from cantata.errors import CantataError, UnknownRunError
from cantata.flows.events import ReplyDelta, StepRefused
from cantata.flows.graph import START, Graph, Outcome
from cantata.ledger import refused_steps
from cantata.ledger.intervals import RESEND_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, Begun, Overdue, Ready, Swept
from cantata.ledger.redis.keys import SHARDS, key_of, run_key, shard_key, shard_of
from cantata.ledger.runs import event_log, listing
from cantata.ledger.step_store import BLOB_BYTES
from cantata.operation import fault_points
from cantata.values import ErrorInfo, Usage
from tests.integration.state import invariants
from tests.integration.state.play import Play, failed, fan_in, row, sent, wait, work

# accepting


def test_a_run_is_accepted_once(ledger: Ledger) -> None:
    first = Play(ledger)
    before = ledger.reader.read("run")

    second = Play(ledger, timeout_s=1)

    assert (first.new, second.new) == (True, False)
    after = ledger.reader.read("run")
    assert (after.status, after.left, after.count, after.created_at_ms) == ("accepted", 1, 1, before.created_at_ms)
    assert first.events() == ["accepted"]


def test_a_run_whose_acceptance_is_told_again_is_new_to_its_client(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_one_reply(monkeypatch, "accept")

    assert Play(ledger).new
    assert not Play(ledger).new


def test_the_more_runs_a_tenant_has_the_later_they_have_their_turn(ledger: Ledger) -> None:
    shard = shard_of("run")
    ids = [run_id for run_id in map(str, range(4000)) if shard_of(run_id) == shard][:20]

    def accept(run_id: str, tenant: str) -> int:
        return ledger.runs.accept(
            run_id,
            kind="turn",
            request="{}",
            definitions="{}",
            timeout_s=9,
            max_attempts=1,
            max_steps=9,
            labels={"tenant": tenant},
        ).priority

    assert [accept(run_id, "busy") for run_id in ids[:18]] == [0] + [3] * 3 + [6] * 12 + [9] * 2
    assert accept(ids[18], "quiet") == 0
    for run_id in ids[:18]:
        ledger.runs.cancel(run_id)
    assert accept(ids[19], "busy") == 0
    assert ledger.redis.hgetall(f"{shard_key(None, shard)}:tenants") == {"busy": "1", "quiet": "1"}


def test_what_was_asked_is_kept_with_the_run(ledger: Ledger) -> None:
    ledger.runs.accept(
        "run",
        kind="chain",
        request='{"a":1}',
        definitions='{"agents":{}}',
        timeout_s=1,
        max_attempts=1,
        max_steps=9,
        labels={"who": "me"},
    )

    kind, request, digest, labels = ledger.runs.request_of("run")

    assert (kind, request, labels) == ("chain", '{"a":1}', {"who": "me"})
    assert ledger.runs.definitions("run", digest) == '{"agents":{}}'
    assert [record.run_id for record in ledger.reader.newest()] == ["run"]


def test_an_unknown_run_is_told_as_such(ledger: Ledger) -> None:
    for ask in (ledger.reader.read, ledger.runs.status, ledger.runs.cancel, ledger.runs.request_of):
        with pytest.raises(UnknownRunError):
            ask("nowhere")
    with pytest.raises(CantataError):
        ledger.runs.definitions("nowhere", "0")
    assert ledger.steps.signal("nowhere", "step", 1) == ("unknown", ())


# beginning


def test_what_nobody_knows_cannot_begin(ledger: Ledger) -> None:
    play = Play(ledger)

    assert play.refusal("nothing") == "gone"
    assert ledger.steps.begin("nowhere", "a", "worker") == "gone"


def test_begin_gives_what_the_step_needs(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a"),
        work("b", reads={"x": "a", "y": START, "z": "nobody"}, given={"n": 1}, params={"p": [1, 2]}),
        edges=row("a", "b"),
    )
    play.do("a", {"ä": None})

    begun = play.begin("b")

    assert begun.inputs == {"x": {"ä": None}, "y": None, "z": None}
    assert (begun.given, begun.spec.params, begun.attempt, begun.failures) == ({"n": 1}, {"p": [1, 2]}, 1, 0)
    assert (begun.spec.kind, begun.spec.queue) == ("work", "tools")
    assert ledger.runs.definitions("run", begun.definitions) == "{}"


def lose_one_reply(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have the next reply to this script get lost, after the script was done."""
    expected = [f"{script}-replied"]

    def at(label: str) -> bool:
        return label in expected and bool(expected.pop())

    monkeypatch.setattr(fault_points, "at", at)


def test_a_begin_whose_reply_was_lost_is_told_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    lose_one_reply(monkeypatch, "begin")

    begun = play.begin("a")

    assert begun.attempt == 1
    assert play.events("a") == ["started"]
    assert play.commit(begun).result == "ok"


def test_a_second_message_for_a_step_is_refused_even_to_the_process_that_does_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    play.begin("a", owner="worker")
    lose_one_reply(monkeypatch, "begin")

    assert ledger.steps.begin("run", "a", "worker") == "leased"


def test_a_step_begun_ahead_is_known_when_the_reply_that_told_of_it_was_lost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", cheap=True), edges=row("a", "b"))
    begun = play.begin("a")
    lose_one_reply(monkeypatch, "commit")

    committed = play.commit(begun, ahead=Ahead("tools"))

    assert (committed.result, committed.sends) == ("again", ())
    assert committed.begun is not None
    assert (committed.begun.step_id, committed.begun.attempt) == ("b", 1)
    assert play.commit(committed.begun).run_status == "succeeded"
    assert play.events("b") == ["started", "done"]


def test_a_worker_hands_back_a_step_with_a_field_it_does_not_know(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    key = f"{run_key(None, 'run')}:steps"
    ledger.redis.hset(key, "a", str(ledger.redis.hget(key, "a")).replace("{", '{"invented_later":1,', 1))

    assert ledger.steps.begin("run", "a", "old") == "refused"

    assert play.events("a") == ["started", "refused"]
    assert (play.step("a").state, play.step("a").crashes) == ("sent", 0)
    refused = next(event for event in event_log.read(ledger.redis, "run") if isinstance(event, StepRefused))
    assert refused.worker == "old"
    assert "does not know field invented_later" in refused.message
    (told,) = refused_steps.recent(ledger.redis)
    assert "step 'a' of run run: this worker does not know field invented_later" in told
    assert 0 < int(str(ledger.redis.ttl(key_of(ledger.redis, refused_steps.KEY)))) <= refused_steps.FRESH_S


def test_a_worker_hands_back_a_step_that_is_damaged_or_newer_without_claiming_to_know_which(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    key = f"{run_key(None, 'run')}:steps"
    ledger.redis.hset(key, "a", str(ledger.redis.hget(key, "a")).replace("{", '{"timeout_s":"long",', 1))

    assert ledger.steps.begin("run", "a", "old") == "refused"

    (told,) = refused_steps.recent(ledger.redis)
    assert "this worker cannot read field timeout_s (Input should be a valid number" in told
    assert "older than the run, or the record is damaged; upgrade it, or cancel the run" in told
    assert ledger.runs.cancel("run") == "cancelled"


def test_a_process_that_refuses_a_step_again_and_again_has_one_event_for_each_reason(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))

    def refuse(owner: str, why: str) -> None:
        begun = play.begin("a", owner=owner)
        ledger.steps.refuse("run", "a", begun.attempt, begun.owner, why)

    def stopped() -> str:
        (run,) = listing.find_page(ledger, listing.RunFilter()).runs
        return run.stopped

    for owner in ("one", "two", "one", "two", "one"):
        refuse(owner, "other code")
    assert play.events("a") == ["started", "refused"] * 2
    assert (play.step("a").attempt, stopped()) == (2, "other code")

    refuse("one", "no code")
    assert play.events("a") == ["started", "refused"] * 3
    assert stopped() == "no code"

    silent = play.begin("a", owner="one")
    assert play.events("a") == ["started", "refused"] * 3
    play.commit(silent)
    assert play.events("a") == [*["started", "refused"] * 3, "started", "done"]
    assert stopped() == ""


def test_a_run_goes_on_when_a_process_that_did_not_refuse_its_step_begins_it(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    refused = play.begin("a", owner="old")
    ledger.steps.refuse("run", "a", refused.attempt, refused.owner, "other code")

    begun = play.begin("a", owner="new")
    (run,) = listing.find_page(ledger, listing.RunFilter()).runs
    assert (run.stopped, run.state) == ("", "running")
    ledger.steps.release(begun)
    play.begin("a", owner="old")
    assert play.events("a") == ["started", "refused", "started", "released", "started"]


# committing


def test_an_outcome_told_twice_counts_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), edges=(*row("a", "b"), *row("a", "c")))
    begun = play.begin("a")

    first = play.commit(begun, outcome=Outcome(output="one", usage=Usage(input_tokens=7)))
    again = play.commit(begun, outcome=Outcome(output="two", usage=Usage(input_tokens=7)))

    assert (first.result, sent(first)) == ("ok", ["b", "c"])
    assert (again.result, sent(again)) == ("again", []), "a sweep sends what was not begun"
    assert play.output("a") == "one"
    assert ledger.reader.read("run").usage.input_tokens == 7
    assert play.events("a") == ["started", "done"]


def test_what_an_outcome_made_ready_whose_reply_was_lost_is_sent_by_a_sweep(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    begun = play.begin("a")
    lose_one_reply(monkeypatch, "commit")

    committed = play.commit(begun)

    assert (committed.result, sent(committed), play.sweep().overdue) == ("again", [], ())
    due = ledger.redis.zscore(f"{play.shard}:ready", "run|b")
    assert 0 < float(str(due)) - ledger.redis.time()[0] * 1000 <= RESEND_S * 1000 + 1000
    assert [step.step_id for step in play.lose_message("b").overdue] == ["b"]


def test_an_outcome_told_again_after_the_end_of_the_run_changes_nothing(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    play.commit(begun, "one")
    before = invariants.take(ledger.redis, "run")

    again = play.commit(begun, "two")

    assert (again.result, again.sends, again.run_status) == ("closed", (), "succeeded")
    assert invariants.take(ledger.redis, "run") == before


LATE = [Outcome(output="late"), failed(), Outcome(status="retry"), Outcome(fragment=Graph(steps=(work("x"),)))]


@pytest.mark.parametrize("owner", ["worker", "another"])
@pytest.mark.parametrize("outcome", LATE)
def test_a_stale_attempt_changes_nothing(ledger: Ledger, outcome: Outcome, owner: str) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    lost = play.begin("a")
    play.lose_lease(lost)
    for now_at in ("sent", "running", "done"):
        if now_at == "running":
            held = play.begin("a", owner=owner)
        if now_at == "done":
            play.commit(held, "right")
        before = invariants.take(ledger.redis, "run")

        answer = play.commit(lost, outcome=outcome)

        assert (answer.result, answer.sends) == ("stale", ())
        assert invariants.take(ledger.redis, "run") == before
    assert play.output("a") == "right"


def test_an_attempt_of_another_owner_is_refused(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    thief = Begun(begun.run_id, begun.step_id, begun.attempt, "thief", begun.spec, None, 0, {}, begun.definitions)

    assert play.commit(thief).result == "stale"
    assert ledger.steps.release(thief) == ()
    assert play.words("a") == "running"


def test_a_run_records_each_version_of_user_code_that_its_steps_ran_with_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), edges=row("a", "b", "c"))

    for step_id, code in (("a", ["steps@1"]), ("b", ["helper@1", "steps@1"]), ("c", ["steps@2"])):
        ledger.steps.commit(play.begin(step_id), Outcome(output=1), output="1", info={"code": [*code]})

    assert ledger.redis.hget(run_key(None, "run"), "code") == "\nsteps@1\nhelper@1\nsteps@2\n"


def test_what_nobody_knows_cannot_be_committed(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")

    def as_if(run_id: str, step_id: str) -> Begun:
        return Begun(run_id, step_id, begun.attempt, begun.owner, begun.spec, None, 0, {}, "")

    assert play.commit(as_if("run", "nothing")).result == "gone"
    assert play.commit(as_if("nowhere", "a")).result == "gone"


def test_what_a_stopped_step_used_counts_once_for_its_run(ledger: Ledger) -> None:
    """Its reply came after the run was cancelled, or the call was cut off; both may be told twice."""
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    replied, cut_off = play.begin("a"), play.begin("b")
    ledger.runs.cancel("run")

    for _ in range(2):
        assert (
            play.commit(replied, outcome=Outcome(usage=Usage(input_tokens=7, cost_usd=0.5, model_calls=1))).result
            == "closed"
        )
        ledger.steps.record_usage(cut_off, Usage(input_tokens=3, model_calls=1))

    assert ledger.reader.read("run").usage == Usage(input_tokens=10, cost_usd=0.5, model_calls=2)
    for tenant, cost in (("", 0.5), (None, 0.5), ("another", 0)):
        assert [each.cost_usd for each in daily_costs.read(ledger, tenant, 2)] == [cost, 0], tenant


def test_what_a_lost_or_late_attempt_used_counts_once_for_its_run(ledger: Ledger) -> None:
    """Its worker was frozen while a model answered, or the join behind it went on; both may be told twice."""
    play = Play(ledger)
    play.plan(work("a"), work("late"), work("end", quorum=1), edges=fan_in(("a", "late"), "end"))
    lost, late = play.begin("a"), play.begin("late")
    play.lose_lease(lost)
    usage = Usage(input_tokens=3, model_calls=1)

    for _ in range(2):
        assert play.commit(lost, outcome=Outcome(usage=usage)).result == "stale"
    again = play.begin("a")
    for _ in range(2):
        play.commit(again, outcome=Outcome(usage=usage))
    assert play.step("late").state == "failed"
    for _ in range(2):
        assert play.commit(late, outcome=Outcome(usage=usage)).result == "stale"
        assert play.commit(lost, outcome=Outcome(usage=usage)).result == "stale"

    assert ledger.reader.read("run").usage == Usage(input_tokens=9, model_calls=3)


def test_a_last_outcome_that_is_told_again_counts_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")

    for _ in range(2):
        play.commit(begun, outcome=Outcome(usage=Usage(input_tokens=7)))

    assert ledger.reader.read("run").usage.input_tokens == 7


def test_usage_is_added_up_and_an_unknown_price_stays_unknown(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), edges=row("a", "b", "c"))

    play.commit(play.begin("a"), outcome=Outcome(usage=Usage(input_tokens=1, output_tokens=2, model_calls=1)))
    assert ledger.reader.read("run").usage.cost_usd is None
    play.commit(play.begin("b"), outcome=Outcome(status="retry", usage=Usage(input_tokens=10, cost_usd=0.25)))
    play.come_due("retry", "b")
    play.commit(play.begin("b"), outcome=Outcome(usage=Usage(tool_calls=3, cost_usd=0.5)))

    assert ledger.reader.read("run").usage == Usage(
        input_tokens=11, output_tokens=2, cost_usd=0.75, model_calls=1, tool_calls=3
    )


def test_warnings_are_told_where_they_arose(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))

    play.commit(play.begin("a"), outcome=Outcome(warnings=("one", "two")))

    assert play.events("a") == ["started", "warning", "warning", "done"]


def test_a_large_output_is_stored_once_and_read_by_all(ledger: Ledger) -> None:
    large = "x" * BLOB_BYTES
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c", reads={"x": "a", "y": "b"}), edges=(*row("a", "c"), *row("b", "c")))
    play.do("a", large)
    play.do("b", large)

    begun = play.begin("c")

    assert begun.inputs == {"x": large, "y": large}
    assert play.output("a") == large
    assert ledger.reader.outputs("run", ["a", "c", "b"]) == [json.dumps(large), None, json.dumps(large)]
    assert ledger.redis.hlen(f"{run_key(None, 'run')}:blobs") == 1


def test_a_large_output_is_measured_in_bytes(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))

    play.do("a", "ä" * (BLOB_BYTES // 2 + 1))

    assert ledger.redis.hlen(f"{run_key(None, 'run')}:blobs") == 1


def test_a_run_goes_well_though_each_reply_is_lost_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_each_reply_once(ledger, monkeypatch)
    play = Play(ledger)
    assert sent(
        play.commit(play.begin(START), outcome=Outcome(fragment=Graph(steps=(work("a"), work("b"), wait("w")))))
    ) == ["a", "b"]

    refused_steps = play.begin("a")
    ledger.steps.release(refused_steps)
    begun = play.begin("a")
    assert ledger.leases.renew([begun.lease, refused_steps.lease]) == {refused_steps.lease}
    play.commit(begun, "once")
    play.lose_lease(play.begin("b"))
    play.commit(play.begin("b"), outcome=Outcome(usage=Usage(tool_calls=1)))
    ledger.steps.signal("run", "w", 1)

    assert play.status == "succeeded"
    assert [play.step(step_id).attempt for step_id in (START, "a", "b")] == [1, 2, 2]
    assert ledger.reader.read("run").usage.tool_calls == 1


def lose_each_reply_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Redis do each call twice: the first time its reply is lost."""
    calls, evalsha = count(), ledger.redis.evalsha

    def deaf(*args: str | int) -> object:
        answer = evalsha(*args)  # type: ignore[arg-type]  # passed on as they come
        if next(calls) % 2 == 0:
            raise RedisConnectionError("the reply was lost")
        return answer

    monkeypatch.setattr(ledger.redis, "evalsha", deaf)


# leases


def test_a_step_whose_lease_ran_out_gets_a_new_attempt(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    lost = play.begin("a")

    swept = play.lose_lease(lost)

    assert (sent(swept), swept.lost) == (["a"], 1)
    assert play.begin("a").attempt == 2
    assert play.events("a") == ["started", "lost", "started"]
    assert ledger.leases.renew([lost.lease]) == {lost.lease}


def test_a_lease_lives_as_long_as_the_ledger_says(ledger: Ledger) -> None:
    play = Play(Ledger(ledger.redis, lease_s=-1))
    play.plan(work("a"))
    play.begin("a")

    assert sent(play.sweep()) == ["a"]


def test_a_lease_that_is_kept_alive_is_not_swept(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    ledger.redis.zadd(f"{play.shard}:leases", {begun.lease: 1.0})

    assert ledger.leases.renew([begun.lease]) == set()

    assert play.sweep().lost == 0
    assert play.words("a") == "running"


def test_renewing_reports_the_leases_that_are_lost(ledger: Ledger) -> None:
    one, other = Play(ledger, "one"), Play(ledger, "other")
    held = []
    for play in (one, other):
        play.plan(work("a"), work("b"), work("c"))
        held += [play.begin("a"), play.begin("b"), play.begin("c")]
    one.commit(held[0])
    one.lose_lease(held[1])
    ledger.runs.cancel("other")

    assert ledger.leases.renew([begun.lease for begun in held]) == {held[i].lease for i in (0, 1, 3, 4, 5)}
    assert ledger.leases.renew([]) == set()


def test_a_step_that_takes_down_its_workers_is_given_up_with_its_story(ledger: Ledger) -> None:
    play = Play(ledger, max_attempts=2)
    play.plan(work("a"), work("b"))

    assert sent(play.lose_lease(play.begin("a", owner="first"))) == ["a"]
    assert sent(play.lose_lease(play.begin("a", owner="second"))) == []

    assert play.status == "failed"
    error = ledger.reader.read("run").error
    assert error is not None
    assert (error.code, error.step) == ("poison", "a")
    assert "2 workers (attempt 1 on first, attempt 2 on second)" in error.message
    assert play.events("a") == ["started", "lost", "started", "lost", "failed"]
    assert (play.step("a").state, play.step("a").crashes) == ("failed", 2)


def test_a_poisonous_step_that_may_be_skipped_does_not_stop_the_run(ledger: Ledger) -> None:
    play = Play(ledger, max_attempts=1)
    play.plan(work("a", on_error="skip"), work("b", reads={"a": "a"}), edges=row("a", "b"))

    swept = play.lose_lease(play.begin("a"))

    assert sent(swept) == ["b"]
    assert play.begin("b").inputs == {"a": None}


def of_one_shard(ledger: Ledger, count: int) -> list[Play]:
    """Runs that lie in the same shard."""
    return [
        Play(ledger, run_id)
        for run_id in [name for name in (f"run{n}" for n in range(10_000)) if shard_of(name) == 0][:count]
    ]


def test_a_lease_that_was_left_over_does_nothing(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    lost = play.begin("a")
    play.lose_lease(lost)
    play.begin("a")
    ledger.redis.zadd(f"{play.shard}:leases", {lost.lease: 1.0})

    assert play.sweep() == Swept()
    assert (play.words("a"), play.step("a").attempt) == ("running", 2)


@pytest.mark.parametrize("step_id", ["done", "running", "waiting", "parked", "gone"])
def test_a_timer_that_was_left_over_does_nothing(ledger: Ledger, step_id: str) -> None:
    play = Play(ledger)
    play.plan(work("done"), work("running"), work("waiting"), wait("parked"), edges=row("running", "waiting"))
    play.do("done")
    play.begin("running")
    own = {"waiting": "join", "parked": "wait"}.get(step_id)
    kinds = [kind for kind in ("retry", "join", "wait") if kind != own]
    before = invariants.take(ledger.redis, "run")
    ledger.redis.zadd(f"{play.shard}:due", {f"{kind}|run|{step_id}": 1.0 for kind in kinds})

    assert play.sweep() == Swept()
    assert invariants.take(ledger.redis, "run") == before


def test_what_a_sweep_does_to_one_run_does_not_touch_another(ledger: Ledger) -> None:
    one, other = of_one_shard(ledger, 2)
    one.plan(work("a"), work("join", deadline_s=60), edges=row("a", "join"))
    other.plan(work("a"), work("join"))
    other.commit(other.begin("a"), outcome=Outcome(status="retry", retry_in_s=60))
    ledger.redis.zadd(f"{one.shard}:due", {f"join|{one.run_id}|join": 1.0, f"retry|{other.run_id}|a": 2.0})

    swept = ledger.leases.sweep(0)

    assert [(run_id, ready.step_id) for run_id, ready in swept.sends] == [(one.run_id, "join"), (other.run_id, "a")]


def test_one_sweep_mends_all_runs_of_a_shard(ledger: Ledger) -> None:
    plays = of_one_shard(ledger, 3)
    for play in plays:
        play.plan(work("a"))
        ledger.redis.zadd(f"{play.shard}:leases", {play.begin("a").lease: 1.0})

    swept = ledger.leases.sweep(0, most=2)
    rest = ledger.leases.sweep(0, most=2)

    assert sorted(run_id for run_id, _ in (*swept.sends, *rest.sends)) == sorted(play.run_id for play in plays)
    assert (swept.lost, rest.lost) == (2, 1)


def test_all_shards_are_swept_in_one_call(ledger: Ledger) -> None:
    plays = [Play(ledger, name) for name in ("one", "two", "three")]
    for play in plays:
        play.plan(work("a"))
        ledger.redis.zadd(f"{play.shard}:leases", {play.begin("a").lease: 1.0})
    ledger.redis.script_flush()

    found = ledger.leases.sweep_all()

    assert sorted(run_id for swept in found for run_id, _ in swept.sends) == ["one", "three", "two"]
    assert ledger.leases.sweep_all() == []


def test_a_run_whose_first_message_got_lost_is_sent_again(ledger: Ledger) -> None:
    overdue = Play(ledger).lose_message(START).overdue

    assert [(run_id, ready.step_id) for run_id, ready in ledger.steps.still_waiting(overdue)] == [("run", START)]
    ledger.runs.cancel("run")
    assert ledger.steps.still_waiting(overdue) == []


def test_only_steps_that_nobody_has_begun_meanwhile_are_sent_again(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", params={"x": 1}), work("b"), work("c"))
    play.lose_message("a")
    steps = [Overdue("run", step_id, "tools", 3, 0.0, False) for step_id in ("a", "b", "c", "nothing")]
    steps.append(Overdue("nowhere", "a", "tools", 3, 0.0, False))
    ledger.redis.script_flush()
    play.do("b")

    assert ledger.steps.still_waiting(steps) == [
        ("run", Ready(step_id, play.step(step_id).spec, 3, has_waited=True)) for step_id in ("a", "c")
    ]


def test_a_shard_that_cannot_be_swept_does_not_stop_the_others(ledger: Ledger) -> None:
    sound = Play(ledger, "sound")
    sound.plan(work("a"))
    ledger.redis.zadd(f"{sound.shard}:leases", {sound.begin("a").lease: 1.0})
    broken = shard_key(None, (shard_of("sound") + 1) % SHARDS)
    ledger.redis.set(f"{broken}:leases", "no sorted set")

    swept = ledger.leases.sweep_all()

    assert [ready.step_id for each in swept for _, ready in each.sends] == ["a"]
    assert [bool(each.fault) for each in swept].count(True) == 1
    ledger.redis.delete(f"{broken}:leases")


def test_the_leases_of_a_dead_owner_can_be_found_and_run_out_at_once(ledger: Ledger) -> None:
    plays = [Play(ledger, name) for name in ("one", "two")]
    for play in plays:
        play.plan(work("a"), work("b"), work("c"))
    dead = [play.begin("a", owner="dead").lease for play in plays]
    alive = [play.begin("b", owner="alive").lease for play in plays]
    finished = plays[0].begin("c", owner="dead")
    plays[0].commit(finished)
    assert set(ledger.leases.names()) == {*dead, *alive}

    ledger.leases.expire([*dead, finished.lease])

    assert [sent(play.sweep()) for play in plays] == [["a"], ["a"]]
    assert set(ledger.leases.names()) == set(alive)


def test_a_step_handed_back_is_not_counted_against_it(ledger: Ledger) -> None:
    play = Play(ledger, max_attempts=1)
    play.plan(work("a"))
    begun = play.begin("a")

    assert [ready.step_id for ready in ledger.steps.release(begun)] == ["a"]
    assert ledger.steps.release(begun) == ()

    assert play.commit(begun).result == "stale"
    assert (play.begin("a").attempt, play.step("a").crashes) == (2, 0)


def test_a_step_whose_message_got_lost_is_found(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    play.begin("b")
    assert play.sweep().overdue == ()

    overdue = play.lose_message("a").overdue

    assert [(step.run_id, step.step_id, step.queue, step.priority) for step in overdue] == [("run", "a", "tools", 0)]
    assert 0 <= ledger.redis.time()[0] + 1 - overdue[0].sent_at < 60
    assert play.sweep().overdue == ()
    assert play.begin("a").attempt == 1


# failures and retries


def test_a_retry_waits_for_its_timer(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", retries=1))

    committed = play.commit(
        play.begin("a"), outcome=Outcome(status="retry", retry_in_s=9.0, error=ErrorInfo(code="busy", message="later"))
    )

    assert (committed.result, committed.sends) == ("ok", ())
    assert (play.words("a"), play.refusal("a"), sent(play.sweep())) == ("waiting", "early", [])
    assert play.step("a").error == ErrorInfo(code="busy", message="later")
    assert sent(play.come_due("retry", "a")) == ["a"]
    again = play.begin("a")
    assert (again.attempt, again.failures) == (2, 1)
    play.commit(again, "at last")
    assert (play.status, play.output("a")) == ("succeeded", "at last")
    assert play.events("a") == ["started", "retry", "started", "done"]


def test_a_failure_that_aborts_ends_the_run_and_keeps_what_is_done(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), work("d"), edges=row("b", "d"))
    play.do("a", "kept")
    held = play.begin("c")

    committed = play.fail("b")

    assert (committed.run_status, committed.sends) == ("failed", ())
    assert play.words("a", "b", "c", "d") == "done failed skipped skipped"
    assert play.output("a") == "kept"
    error = ledger.reader.read("run").error
    assert error is not None
    assert (error.code, error.step) == ("broke", "b")
    assert play.commit(held).result == "closed"
    assert ledger.leases.renew([held.lease]) == {held.lease}


def test_a_failure_that_is_skipped_goes_on_with_null(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", on_error="skip"), work("b", reads={"a": "a"}), edges=row("a", "b"))

    committed = play.fail("a")

    assert sent(committed) == ["b"]
    assert play.begin("b").inputs == {"a": None}
    assert play.step("a").error is not None


def test_the_edge_for_failure_is_not_taken_by_success(ledger: Ledger) -> None:
    play = Play(ledger)
    jump = row("a", "mend")[0].model_copy(update={"label": "failed"})
    play.plan(work("a", on_error="jump"), work("b"), work("mend"), edges=(*row("a", "b"), jump))

    assert sent(play.do("a")) == ["b"]
    assert play.words("mend") == "skipped"


# the end of a run


def test_a_run_with_nothing_left_is_closed(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"), terminals=("b",))
    play.do("a")

    committed = play.do("b", 42)

    assert (committed.run_status, play.status) == ("succeeded", "succeeded")
    record = ledger.reader.read("run")
    assert (record.left, record.terminals, record.closed_at_ms is not None) == (0, ("b",), True)
    assert play.events()[-1] == "closed"


def test_a_run_that_plans_nothing_has_succeeded(ledger: Ledger) -> None:
    play = Play(ledger)

    assert play.do(START).run_status == "succeeded"


def test_cancelling_stops_everything_and_is_told_to_workers(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("running"),
        work("sent"),
        work("retrying"),
        work("waiting"),
        wait("parked", timeout_s=9),
        work("late", deadline_s=9),
        edges=(*row("sent", "waiting"), *row("sent", "late")),
    )
    held = play.begin("running")
    play.commit(play.begin("retrying"), outcome=Outcome(status="retry", retry_in_s=9))

    assert ledger.runs.cancel("run") == "cancelled"

    assert ledger.leases.renew([held.lease]) == {held.lease}
    assert play.commit(held).result == "closed"
    assert play.sweep() == Swept()
    assert ledger.reader.read("run").error == ErrorInfo(code="cancelled", message="the run was cancelled")


def test_a_run_is_cancelled_once(ledger: Ledger) -> None:
    play = Play(ledger)
    error = ErrorInfo(code="money", message="the budget is spent")

    assert ledger.runs.cancel("run", status="exhausted", error=error) == "exhausted"
    assert ledger.runs.cancel("run") == "exhausted"

    assert play.events() == ["accepted", "closed"]
    assert ledger.reader.read("run").error == error
    assert play.refusal(START) == "closed"


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_past_its_time_ends_with_what_it_has(ledger: Ledger, begun: bool) -> None:
    play = Play(ledger)
    if begun:
        play.plan(work("a"), work("b"), edges=row("a", "b"))
        play.do("a", "kept")

    play.come_due("deadline")

    assert play.status == "timed_out"
    error = ledger.reader.read("run").error
    assert error is not None
    assert error.code == "timeout"
    if begun:
        assert (play.words("a", "b"), play.output("a")) == ("done skipped", "kept")


def test_every_key_of_a_closed_run_expires(ledger: Ledger, valkey: Redis) -> None:
    for end in ("succeeded", "failed", "cancelled", "timed_out"):
        play = Play(ledger, end, retention_s=5)
        play.plan(
            work("a", on_error="skip", given=1),
            wait("w", timeout_s=9),
            work("j", deadline_s=9, quorum=2),
            edges=(*row("a", "j"), *row("w", "j")),
        )
        play.do("a", "x" * BLOB_BYTES)
        ledger.steps.signal(end, "w", 1)
        if end == "cancelled":
            ledger.runs.cancel(end)
        elif end == "timed_out":
            play.come_due("deadline")
        elif end == "failed":
            play.fail("j")
        else:
            play.do("j")
        assert play.status == end

        invariants.check_keys(valkey, end)

        keys = [key for key in cast("list[str]", valkey.keys("cantata:*")) if f":run:{end}" in key]
        assert {key.removeprefix(run_key(None, end)) for key in keys} >= {
            "",
            ":state",
            ":out",
            ":log",
            ":closed",
            ":blobs",
            ":given",
        }
        assert all(0 < valkey.pttl(key) <= 5000 for key in keys)
        assert [key for key in ("leases", "ready", "due") if valkey.exists(f"{play.shard}:{key}")] == []


def test_an_expired_run_leaves_nothing_behind(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger, retention_s=-1)
    play.plan(work("a"))
    play.do("a")

    play.sweep()

    assert valkey.keys("cantata:*") == [f"{play.shard}:totals"]
    assert ledger.reader.newest() == []


def test_a_message_for_an_expired_run_is_forgotten(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger)
    begun = play.begin(START)
    for key in cast("list[str]", valkey.keys(f"{run_key(None, 'run')}*")):
        valkey.delete(key)
    valkey.zadd(f"{play.shard}:ready", {"run|a": 1.0})
    valkey.zadd(f"{play.shard}:leases", {begun.lease: 1.0})

    assert play.sweep() == Swept()
    assert play.commit(begun).result == "gone"
    assert ledger.redis.zcard(f"{play.shard}:ready") == 0
    valkey.flushdb()


def test_a_note_is_added_only_while_the_run_goes_on(ledger: Ledger) -> None:
    play = Play(ledger)

    assert ledger.runs.append_event("run", "unserved", step_id="a", detail={"queue": "gpu"})
    ledger.runs.cancel("run")
    assert not ledger.runs.append_event("run", "unserved")

    assert play.events() == ["accepted", "unserved", "closed"]


# running ahead

AHEAD = Ahead("tools", "\ntiny\n")


def begun_ahead(play: Play, *steps: str) -> str:
    """What is begun in the call that finishes `a`, and what is to be sent."""
    committed = play.do("a", ahead=AHEAD)
    assert sorted([*sent(committed), *([committed.begun.step_id] if committed.begun else [])]) == sorted(steps)
    return committed.begun.step_id if committed.begun else ""


@pytest.mark.parametrize(
    ("spec", "runs_ahead"),
    [
        ({"work": "tiny"}, True),
        ({"work": "tin"}, False),
        ({"work": ""}, False),
        ({"work": "large"}, False),
        ({"cheap": True}, True),
        ({"cheap": False, "work": "tiny"}, False),
        ({"cheap": True, "queue": "agents"}, False),
        ({"work": "tiny", "queue": "agents"}, False),
        ({"decides": True, "queue": "coordinator"}, True),
    ],
)
def test_the_next_step_is_begun_at_once_if_cheap_here_or_a_decision(
    ledger: Ledger, spec: dict[str, object], runs_ahead: bool
) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", **spec), edges=row("a", "b"))

    assert begun_ahead(play, "b") == ("b" if runs_ahead else "")
    assert play.words("b") == ("running" if runs_ahead else "sent")


@pytest.mark.parametrize(
    ("spec", "runs_ahead"),
    [
        ({"kind": "agent.turn", "queue": "agents", "cheap": False}, True),
        ({"kind": "agent.turn", "queue": "other", "cheap": False}, False),
        ({"kind": "tool.call", "queue": "agents", "cheap": False}, False),
        ({"kind": "tool.call", "queue": "tools", "work": "tools:price"}, True),
        ({"kind": "tool.call", "queue": "tools", "work": "tools:other", "cheap": True}, False),
        ({"kind": "tool.call", "queue": "tools", "work": ""}, False),
        ({"kind": "proc.run", "queue": "tools", "work": "tools:price"}, False),
    ],
)
def test_the_next_round_of_a_model_and_the_named_function_are_begun_at_once(
    ledger: Ledger, spec: dict[str, object], runs_ahead: bool
) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", **spec), edges=row("a", "b"))

    committed = play.do("a", ahead=Ahead("agents", rounds=True, tool="tools:price"))

    assert (committed.begun is not None, sent(committed)) == (runs_ahead, [] if runs_ahead else ["b"])


def test_a_round_is_not_begun_where_no_thread_is_free(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", kind="agent.turn", queue="agents", cheap=False), edges=row("a", "b"))

    assert sent(play.do("a", ahead=Ahead("agents"))) == ["b"]


def test_of_several_cheap_steps_none_is_begun_ahead(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", cheap=True), work("c", cheap=True), edges=(*row("a", "b"), *row("a", "c")))

    assert begun_ahead(play, "b", "c") == ""


def test_of_several_decisions_one_is_begun_ahead(ledger: Ledger) -> None:
    play = Play(ledger)
    decisions = work("c", decides=True), work("d", decides=True)
    play.plan(work("a"), work("b"), *decisions, edges=(*row("a", "b"), *row("a", "c"), *row("a", "d")))

    assert begun_ahead(play, "b", "c", "d") == "c"


def test_nothing_is_begun_ahead_unasked(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", decides=True), edges=row("a", "b"))

    committed = play.do("a")

    assert (committed.begun, sent(committed)) == (None, ["b"])


def test_a_step_begun_ahead_is_leased_and_has_its_inputs(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", decides=True, reads={"x": "a"}), edges=row("a", "b"))

    begun = play.do("a", 5, ahead=AHEAD).begun

    assert begun is not None
    assert (begun.inputs, begun.attempt, begun.worker) == ({"x": 5}, 1, "worker")
    assert ledger.leases.renew([begun.lease]) == set()
    assert play.commit(begun, 6).run_status == "succeeded"


def test_the_next_of_a_batch_is_begun_with_the_commit(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"))

    committed = play.do("a", ahead=Ahead("tools", next_step="b"))

    assert committed.begun is not None
    assert committed.begun.step_id == "b"
    assert play.words("a", "b", "c") == "done running sent"


def test_what_the_commit_made_ready_goes_before_the_batch(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", decides=True), work("c"), edges=row("a", "b"))

    committed = play.do("a", ahead=Ahead("tools", next_step="c"))

    assert committed.begun is not None
    assert committed.begun.step_id == "b"
    assert play.words("c") == "sent"


@pytest.mark.parametrize("next_step", ["done", "running", "waiting", "nothing"])
def test_the_next_of_a_batch_is_begun_only_if_it_may(ledger: Ledger, next_step: str) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("done"), work("running"), work("waiting"), edges=row("running", "waiting"))
    play.do("done")
    play.begin("running", owner="another")

    committed = play.do("a", ahead=Ahead("tools", next_step=next_step))

    assert (committed.result, committed.begun) == ("ok", None)


@pytest.mark.parametrize("how", ["again", "stale", "retry"])
def test_a_batch_goes_on_after_a_commit_that_opens_nothing(ledger: Ledger, how: str) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    begun = play.begin("a")
    if how == "again":
        play.commit(begun)
    if how == "stale":
        play.lose_lease(begun)

    outcome = Outcome(status="retry" if how == "retry" else "done")
    committed = play.commit(begun, outcome=outcome, ahead=Ahead("tools", next_step="b"))

    assert committed.result == ("ok" if how == "retry" else how)
    assert committed.begun is not None
    assert committed.begun.step_id == "b"


def test_a_batch_ends_with_its_run(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"))

    committed = play.commit(play.begin("a"), outcome=failed(), ahead=Ahead("tools", next_step="b"))

    assert (committed.run_status, committed.begun) == ("failed", None)


def test_a_step_that_may_happen_once_only_waits_for_a_person_when_its_worker_dies(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("pay", at_most_once=True), work("note", reads={"paid": "pay"}), edges=row("pay", "note"))

    assert sent(play.lose_lease(play.begin("pay"))) == []

    assert play.step("pay").state == "waiting_signal"
    assert play.events("pay") == ["started", "lost", "uncertain"]
    assert play.refusal("pay") == "early"
    word, ready = ledger.steps.signal("run", "pay", {"paid": True})
    assert (word, [step.step_id for step in ready]) == ("taken", ["note"])
    assert play.begin("note").inputs == {"paid": {"paid": True}}


def test_pieces_of_a_reply_are_told_while_their_attempt_counts(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    first = play.begin("a")
    assert ledger.steps.append_delta(first, "Hel")
    play.lose_lease(first)
    second = play.begin("a")

    assert [ledger.steps.append_delta(first, "lo"), ledger.steps.append_delta(second, "Hello")] == [False, True]

    told = [
        (event.attempt, event.text) for event in event_log.read(ledger.redis, "run") if isinstance(event, ReplyDelta)
    ]
    assert told == [(1, "Hel"), (2, "Hello")]


def test_a_run_whose_bounds_are_used_up_is_exhausted(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))

    play.commit(play.begin("a"), outcome=failed("exhausted"))

    assert play.status == "exhausted"


def test_a_spent_budget_ends_the_run_whoever_would_bear_the_failure(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", on_error="skip"), work("b"))

    play.commit(play.begin("a"), outcome=failed("budget"))

    assert play.status == "exhausted"


def test_a_step_that_must_wait_is_tried_again_without_counting_a_failure(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    play.commit(play.begin("a"), outcome=Outcome(status="wait", retry_in_s=60))

    assert sent(play.sweep()) == []
    (woken,) = ledger.steps.wake_all(["run|a"])
    assert (woken.result, [step.step_id for step in woken.sends]) == ("woken", ["a"])
    begun = play.begin("a")

    assert (begun.attempt, begun.failures, play.step("a").crashes) == (2, 0, 0)
    assert play.events("a") == ["started", "rate_limited", "started"]


def test_a_step_that_has_waited_keeps_the_priority_of_its_run(ledger: Ledger) -> None:
    shard = shard_of("run")
    ids = [run_id for run_id in map(str, range(4000)) if shard_of(run_id) == shard][:2]
    labels = {"tenant": "busy"}
    for run_id in ids:
        play = Play(ledger, run_id, labels=labels)
    assert play.accepted.priority == 3, "it is the second of its tenant"
    play.plan(work("a"), work("b"), wait("w"), work("after"), edges=row("w", "after"))

    play.commit(play.begin("a"), outcome=Outcome(status="wait", retry_in_s=60))
    (woken,) = ledger.steps.wake_all([f"{play.run_id}|a"])
    play.commit(play.begin("b"), outcome=Outcome(status="retry", retry_in_s=0.0))
    retried = play.sweep().sends
    word, signalled = ledger.steps.signal(play.run_id, "w", "go")

    assert word == "taken"
    assert [(step.step_id, step.priority) for step in (*woken.sends, *(each for _, each in retried), *signalled)] == [
        ("a", 3),
        ("b", 3),
        ("after", 3),
    ]


def test_a_step_that_waits_for_limits_is_named_to_them_now_and_then(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    for step_id in ("a", "b"):
        play.commit(play.begin(step_id), outcome=Outcome(status="wait", retry_in_s=60 if step_id == "a" else 0))

    assert play.sweep().waiting == ("run|b",)
    assert play.sweep().waiting == (), "half a minute later"
