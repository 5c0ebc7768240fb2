"""The checker finds nothing in a sound history, and each sort of violation in one that was doctored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import cast

import pytest
from pydantic import JsonValue
from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY, Ask, Limiter
from cantata.features.forks import fork_store
from cantata.features.forks import rewind as planning
from cantata.features.forks.fork_requests import FORKED_FROM
from cantata.features.memory.memory_store import MemoryStore
from cantata.flows.definitions import Limits, Rates
from cantata.flows.graph import START, Graph, Outcome, Step
from cantata.flows.turns.agent_steps import next_round
from cantata.ledger import conversations
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun, RunSession
from cantata.ledger.redis.keys import run_key, shard_key, shard_of
from cantata.values import ErrorInfo, Usage
from tests.faults import limits
from tests.faults.fault_tools import REMEMBERED
from tests.faults.history import check
from tests.faults.journal import Journal, Line, What
from tests.faults.shapes import MODEL, ROUTER, definitions
from tests.integration.state.play import Play, fan_in, row, work

RUN = "sound"
KEY, SHARD = run_key(None, RUN), shard_key(None, shard_of(RUN))
PID = 4711
OWNER = f"tools@here#{PID}"
ROUND_TOKENS = 12, 8
BUDGET, SLOTS = f"cantata:{LIMITS_KEY}:budget:run:{RUN}", f"cantata:{LIMITS_KEY}:model:{MODEL}:slots"

Fields = dict[str, str]


class World:
    """A run that went well.

    a (whose first attempt was handed back), then b and c, then their join; an agent's turn with a tool; a step that has something
    remembered; a task of the user's, which was late and then had ended after all; a router that is asked, and two agents that take turns.
    """

    def __init__(self, redis: Redis, journal: Journal) -> None:
        self.redis = redis
        self.journal = journal
        self.play = Play(Ledger(redis), RUN)
        journal.write("accepted", run_id=RUN, tag="tag", shape="sample", expected=3)
        tools = [work(name, kind="tool.call") for name in ("a", "b", "c", "join")]
        turn = work("turn", kind="agent.turn", work="agents:ann")
        note = work("note", kind="tool.call", work="tools:remember")
        takes = [work(name, kind="team.next", work="teams:round") for name in ("take0", "take1")]
        edges = (*row("a", "b"), *row("a", "c"), *fan_in(("b", "c"), "join"))
        task = work("task", kind="task.call", timeout_s=0.001)
        self.play.plan(*tools, turn, note, task, asks_router("@router"), *takes, edges=edges, terminals=("join",))
        self.play.ledger.steps.release(self._start("a"))
        for name in ("a", "b", "c", "join"):
            self._do(name)
        self.limiter = Limiter(self.play.ledger)
        self._ask("turn", lambda begun: next_round(begun.step_id, begun.spec, 1, [work("turn/t0", kind="tool.call")]))
        self._do("turn/t0")
        self._ask("turn/r1")
        MemoryStore(self.play.ledger).append(RUN, "note", REMEMBERED)
        self._do("note")
        self._call("task")
        self.journal.write("asked", tag="tag", agent=ROUTER)
        self.play.do("@router", "{}")
        for place in (0, 1):
            begun = self.play.begin(f"take{place}")
            self.play.ledger.steps.commit(begun, Outcome(), output="null", info={"index": place})

    def _start(self, step: str) -> Begun:
        begun = self.play.begin(step, owner=OWNER)
        self.journal.write("start", run_id=RUN, step_id=step, attempt=begun.attempt, pid=PID)
        return begun

    def _do(self, step: str) -> None:
        begun = self._start(step)
        self.journal.write("finish", run_id=RUN, step_id=step, attempt=begun.attempt, pid=PID)
        self.play.commit(begun, 3)

    def _call(self, step: str) -> None:
        begun, task_id = self._start(step), f"cantata-{RUN}-1-0"
        self.play.commit(begun, outcome=Outcome(status="dispatched"))
        self.play.commit(begun, outcome=Outcome(status="retry", error=ErrorInfo(code="timeout", message="late")))
        self.journal.write("finish", run_id=RUN, step_id=step, attempt=1, pid=PID)
        self.play.come_due("retry", step)
        self.play.ledger.steps.commit(
            self.play.begin(step, owner=OWNER), Outcome(output=3), output="3", info={"task_id": task_id}
        )

    def _ask(self, step: str, grow: Callable[[Begun], Graph] | None = None) -> None:
        begun = self.play.begin(step, owner=OWNER)
        number = int(str(begun.spec.params.get("round", 0)))
        self.take(begun.lease)
        self.journal.write("asked", tag="tag", agent="ann", round=number)
        usage = Usage(input_tokens=ROUND_TOKENS[number], output_tokens=1, cost_usd=0.001)
        self.limiter.settle(begun.lease, tokens=usage.input_tokens + usage.output_tokens, usd=usage.cost_usd)
        outcome = Outcome(output="hello", usage=usage, fragment=grow(begun) if grow else None)
        self.play.ledger.steps.commit(
            begun, outcome, output='"hello"', info={"usage": usage.model_dump(exclude_defaults=True)}
        )

    def take(self, holder: str, bounds: Limits | None = None) -> None:
        """Take leave for a model call."""
        self.limiter.take(Ask(holder=holder, model=MODEL, tokens=1000, usd=0.01), bounds or definitions().limits)

    def route_again(self) -> None:
        """Another step that asks the router for the same decision, as if there were two."""
        for part in ("steps", "state", "out", "info"):
            if text := self.redis.hget(f"{KEY}:{part}", "@router"):
                self.redis.hset(f"{KEY}:{part}", "@router.again", str(text))

    # --- doctoring --------------------------------------------------------------------------------------------------

    def edit_log(self, edit: Callable[[list[Fields]], None]) -> None:
        """Write the run's stream anew."""
        key = f"{KEY}:log"
        entries = [fields for _, fields in cast("list[tuple[str, Fields]]", self.redis.xrange(key))]
        edit(entries)
        left_ms = self.redis.pttl(key)
        self.redis.delete(key)
        for number, fields in enumerate(entries, 1):
            self.redis.xadd(key, fields, id=f"0-{number}")  # type: ignore[arg-type]  # the stubs want wider keys
        self.redis.pexpire(key, left_ms)

    def edit_journal(self, edit: Callable[[list[Line]], None]) -> None:
        """Write the journal anew."""
        lines = self.journal.lines()
        edit(lines)
        self.journal.path.write_text("".join(f"{line.model_dump_json()}\n" for line in lines))

    def line(self, what: What, step: str, *, attempt: int = 1, later_s: float = 0.0) -> None:
        """One more line of a tool, of a time after the run."""
        at = self.journal.lines()[-1].at + later_s
        self.journal.write(what, run_id=RUN, step_id=step, attempt=attempt, pid=PID, at=at)


def asks_router(step_id: str) -> Step:
    """A step that asks the router for the first decision of a run."""
    return work(step_id, kind="team.ask", work="teams:desk", params={"team": "desk", "round": {}})


@pytest.fixture
def world(valkey: Redis, tmp_path: Path) -> World:
    """A sound history, for a test to doctor."""
    valkey.flushdb()
    return World(valkey, Journal(tmp_path / "journal.jsonl"))


def event(entries: list[Fields], kind: str, step: str = "") -> int:
    """Where the first event of a type of a step is."""
    return next(number for number, fields in enumerate(entries) if (fields["t"], fields["s"]) == (kind, step))


def line_of(lines: list[Line], what: What, step: str) -> Line:
    """The first line of a step."""
    return next(line for line in lines if (line.what, line.step_id) == (what, step))


def said(world: World) -> str:
    """The violations, a line each."""
    return "\n".join(map(str, check(world.journal, world.redis)))


def test_a_sound_history_has_no_violation(world: World) -> None:
    assert said(world) == ""


def test_a_run_that_was_accepted_and_is_gone_is_found(world: World) -> None:
    world.redis.flushdb()

    assert "sound (sample): expected a run that was accepted is kept; found nothing of it in the ledger" in said(world)


def test_a_run_that_does_not_end_is_found(world: World) -> None:
    world.redis.hset(KEY, "status", "running")
    world.redis.hset(f"{KEY}:state", "join", f"running 1 0 2 0 0 0 {OWNER}")

    assert "expected the run succeeded; found it is running: steps under way: join" in said(world)


def test_a_wrong_output_is_found(world: World) -> None:
    world.redis.hset(f"{KEY}:out", "join", "4")

    assert "run sound (sample tag): expected the output 3; found 4" in said(world)


def test_a_gap_in_the_offsets_is_found(world: World) -> None:
    world.redis.xdel(f"{KEY}:log", "0-4")

    assert "without gap or repeat; found 0-5 in place 4" in said(world)


def test_an_event_that_is_told_twice_is_found(world: World) -> None:
    world.edit_log(lambda entries: entries.append(entries[-1]))

    assert "expected the event 'closed' once" in said(world)


def test_a_second_outcome_is_found(world: World) -> None:
    world.edit_log(lambda entries: entries.insert(-1, entries[event(entries, "done", "c")]))

    assert "step c: expected one outcome; found 2: [('done', 1), ('done', 1)], and the state 'done'" in said(world)


def test_a_step_started_again_after_its_outcome_is_found(world: World) -> None:
    world.edit_log(lambda entries: entries.insert(-1, {**entries[event(entries, "started", "c")], "a": "2"}))

    assert "step c: expected nothing after its outcome; found 'started' of attempt 2" in said(world)


def test_a_fence_that_does_not_rise_is_found(world: World) -> None:
    def repeat(entries: list[Fields]) -> None:
        second = event(entries, "released", "a") + 1
        entries[second] = {**entries[second], "a": "1"}

    world.edit_log(repeat)

    assert "step a: expected attempts 1 to 2, as its state says; found [1, 1] started" in said(world)


def test_an_end_that_names_its_worker_is_a_start_too(world: World) -> None:
    def join(entries: list[Fields]) -> None:
        started = entries.pop(event(entries, "started", "c"))
        entries[event(entries, "done", "c")].update(w=started["w"])

    world.edit_log(join)
    assert said(world) == ""

    world.edit_log(lambda entries: entries[event(entries, "done", "c")].update(w=""))
    assert "step c: expected attempts 1 to 1, as its state says; found [] started" in said(world)


def test_the_outcome_of_an_attempt_that_was_over_is_found(world: World) -> None:
    world.edit_log(lambda entries: entries[event(entries, "done", "a")].update(a="1"))

    assert "step a: expected the outcome of its last attempt, 2; found that of attempt 1" in said(world)


def test_a_join_that_fires_twice_is_found(world: World) -> None:
    def again(entries: list[Fields]) -> None:
        fired = event(entries, "started", "join")
        entries.insert(fired, {**entries[fired], "a": "1"})
        entries[fired + 1] = {**entries[fired + 1], "a": "2"}

    world.edit_log(again)

    assert "step join: expected the end of attempt 1 before attempt 2 starts" in said(world)


def test_a_join_that_fires_too_early_is_found(world: World) -> None:
    world.edit_log(
        lambda entries: entries.insert(event(entries, "done", "b"), entries.pop(event(entries, "started", "join")))
    )

    assert "step join: expected its source b over before it starts" in said(world)


def test_an_outcome_of_a_tool_that_never_finished_is_found(world: World) -> None:
    world.edit_journal(lambda lines: lines.remove(line_of(lines, "finish", "c")))

    assert "step c: expected one finish of attempt 1 in the journal; found 0, though its outcome is recorded" in said(
        world
    )


def test_an_attempt_that_is_done_twice_is_found(world: World) -> None:
    world.edit_journal(lambda lines: lines.insert(1, line_of(lines, "start", "c")))

    assert "step c: expected attempt 1 done once; found 2 starts in the journal" in said(world)


def test_an_attempt_that_the_ledger_did_not_grant_is_found(world: World) -> None:
    world.line("start", "c", attempt=7)

    assert (
        f"step c: expected an attempt in the ledger for each in the journal; found attempt 7 in process {PID} is unknown to it"
        in said(world)
    )


def test_a_finished_step_that_is_done_again_is_found(world: World) -> None:
    world.line("start", "a", attempt=1, later_s=2)

    assert f"step a: expected nothing done after its outcome; found attempt 1 in process {PID} " in said(world)


def test_a_process_that_was_frozen_may_go_on_with_what_it_does_not_know_to_be_over(world: World) -> None:
    world.edit_journal(lambda lines: lines.remove(line_of(lines, "start", "a")))
    world.line("start", "a", attempt=1, later_s=2)
    world.journal.write("frozen", pid=PID, until=world.journal.lines()[-1].at)

    assert said(world) == ""


@pytest.mark.parametrize("hurt", [None, "killed", "frozen"])
def test_a_lease_that_a_live_worker_lost_is_found(world: World, hurt: What | None) -> None:
    world.edit_log(lambda entries: entries[event(entries, "released", "a")].update(t="lost"))
    if hurt:
        at = world.journal.lines()[0].at
        world.journal.write(hurt, pid=PID, at=at, until=at + 1)

    assert said(world) == (
        ""
        if hurt
        else f"run sound (sample tag), step a: expected the lease of a live worker kept; found attempt 1 of {OWNER} lost"
    )


def test_two_attempts_at_once_are_found(world: World) -> None:
    world.line("finish", "a", attempt=1, later_s=2)

    assert "step a: expected one attempt at a time; found attempt 2 in process" in said(world)


def test_a_task_that_never_finished_is_found(world: World) -> None:
    world.edit_journal(lambda lines: lines.remove(line_of(lines, "finish", "task")))

    assert (
        "step task: expected one finish of attempt 1 in the journal; found 0, though its outcome is recorded"
        in said(world)
    )


@pytest.mark.parametrize(("event_type", "limit_s"), [("lost", 0.001), ("released", 0.001), ("retry", 60)])
def test_a_task_that_was_given_up_before_its_time_is_found(world: World, event_type: str, limit_s: float) -> None:
    spec = json.loads(str(world.redis.hget(f"{KEY}:steps", "task")))
    world.redis.hset(f"{KEY}:steps", "task", json.dumps({**spec, "timeout_s": limit_s}))
    world.edit_log(lambda entries: entries[event(entries, "retry", "task")].update(t=event_type, w=OWNER))

    assert (
        f"step task: expected attempt 1 left to the user's worker for {limit_s:g} s; found {event_type!r} (timeout) after 0.0"
        in said(world)
    )


def test_a_task_that_failed_by_its_worker_s_word_may_be_repeated_at_once(world: World) -> None:
    spec = json.loads(str(world.redis.hget(f"{KEY}:steps", "task")))
    world.redis.hset(f"{KEY}:steps", "task", json.dumps({**spec, "timeout_s": 60}))
    told = json.dumps({"error": {"code": "tool_error", "message": "it broke"}})
    world.edit_log(lambda entries: entries[event(entries, "retry", "task")].update(d=told))

    assert said(world) == ""


@pytest.mark.parametrize(
    ("times", "number", "step"),
    [(0, 0, "turn"), (2, 0, "turn"), (2, 1, "turn/r1"), (0, 0, "@router"), (2, 0, "@router")],
)
def test_a_model_that_is_asked_too_often_or_never_is_found(world: World, times: int, number: int, step: str) -> None:
    agent = ROUTER if step == "@router" else "ann"
    asked = next(line for line in world.journal.of("asked") if (line.agent, line.round) == (agent, number))
    world.edit_journal(lambda lines: lines.remove(asked))
    world.edit_journal(lambda lines: lines.extend([asked] * times))

    assert f"step {step}: expected its model asked 1 to 1 times, as it had 1 attempts; found {times} times" in said(
        world
    )


@pytest.mark.parametrize(("number", "step"), [(0, "turn"), (1, "turn/r1")])
def test_a_model_asked_after_the_outcome_is_found(world: World, number: int, step: str) -> None:
    asked = next(line for line in world.journal.of("asked") if line.round == number)
    world.edit_journal(lambda lines: lines.append(asked.model_copy(update={"at": lines[-1].at + 2})))

    assert f"step {step}: expected nothing done after its outcome; found ann asked " in said(world)


def test_a_model_that_is_shown_what_no_turn_of_the_run_knows_is_found(world: World) -> None:
    world.journal.write("asked", tag="tag", agent="ann", round=-1)

    assert "expected models asked for turns of the run; found ann asked for round -1, which is none" in said(world)


def test_a_router_that_two_steps_ask_for_one_decision_is_found(world: World) -> None:
    world.route_again()

    assert "expected one step that asks the router for decision 1; found 2" in said(world)


@pytest.mark.parametrize("items", [[], ["note", "note"]])
def test_what_is_forgotten_or_remembered_twice_is_found(world: World, items: list[JsonValue]) -> None:
    MemoryStore(world.play.ledger).store_memory(RUN, items, REMEMBERED)

    assert said(world).endswith(f"step note: expected its item remembered 1 to 1 times; found {len(items)}")


def test_what_was_done_twice_may_be_remembered_twice(world: World) -> None:
    MemoryStore(world.play.ledger).append(RUN, "note", REMEMBERED)
    world.line("start", "note", attempt=2)

    assert "remembered" not in said(world)


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (0, "take1: expected a place in the rotation of its own; found place 0, which sound (sample tag) has"),
        (2, "found none by a run in [1]"),
    ],
)
def test_agents_that_share_or_leave_out_a_turn_are_found(world: World, place: int, found: str) -> None:
    world.redis.hset(f"{KEY}:info", "take1", f'{{"index":{place}}}')

    assert found in said(world)


FORK = next(name for number in count() if shard_of(name := f"fork{number}") == shard_of(RUN))


@pytest.fixture
def forked(world: World) -> World:
    """A fork from the join of the sound run, which went well too."""
    ledger = world.play.ledger
    fork = planning.fork(fork_store.read(ledger, RUN), "join")
    fork_store.make(ledger, FORK, fork, request={}, given=None, labels={FORKED_FROM: RUN})
    world.journal.write("accepted", run_id=FORK, tag="forked", shape="sample", expected=4)
    begun = ledger.steps.begin(FORK, "join", OWNER)
    assert isinstance(begun, Begun)
    for what in cast("tuple[What, ...]", ("start", "finish")):
        world.journal.write(what, run_id=FORK, step_id="join", attempt=1, pid=PID)
    ledger.steps.commit(begun, Outcome(output=4), output="4", info={})
    return world


def test_a_sound_fork_has_no_violation(forked: World) -> None:
    assert said(forked) == ""


@pytest.mark.parametrize("later_s", [0.0, 2.0])
def test_a_fork_that_asks_again_for_what_it_took_over_is_found(forked: World, later_s: float) -> None:
    forked.journal.write("asked", tag="forked", agent="ann", at=forked.journal.lines()[-1].at + later_s)

    assert (
        f"run {FORK} (sample forked), step turn: expected its model asked 0 to 0 times, as it had 0 attempts; found 1 times"
        in said(forked)
    )


def test_a_fork_that_changes_what_it_took_over_is_found(forked: World) -> None:
    forked.redis.hset(f"{run_key(None, FORK)}:out", "b", "5")

    assert f"run {FORK} (sample forked), step b: expected the outcome that it had in {RUN} (sample tag)" in said(forked)


def test_a_fork_that_is_not_whole_is_found(forked: World) -> None:
    for part in ("steps", "state"):
        forked.redis.hdel(f"{run_key(None, FORK)}:{part}", "turn/t0")

    assert f"run {FORK} (sample forked): expected the steps of {RUN} (sample tag); found none like turn/t0" in said(
        forked
    )


def test_a_fork_that_nobody_was_told_of_is_found(forked: World) -> None:
    forked.edit_journal(lambda lines: lines.__setitem__(slice(None), [line for line in lines if line.run_id != FORK]))

    assert f"run {FORK}: expected each fork told to who asked for it; found one of {RUN} that is succeeded" in said(
        forked
    )


@pytest.mark.parametrize("spent", [0, 21, 23])
def test_a_budget_that_was_charged_too_little_or_too_much_is_found(world: World, spent: int) -> None:
    world.redis.hset(BUDGET, "tokens", spent)

    assert said(world) == f"run sound (sample tag): expected 22 to 22 tokens charged to its budget; found {spent}"


def test_a_call_that_was_lost_on_the_way_may_be_charged_once_more(world: World) -> None:
    world.edit_journal(lambda lines: lines.insert(0, world.journal.of("asked")[0]))
    world.redis.hincrby(BUDGET, "tokens", 13)

    assert "charged" not in said(world)


def test_what_the_shared_limits_still_hold_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATIENCE_S", 0.0)
    world.take("sound|1|dead#1|turn")

    found = said(world)

    for entry, place in (
        ("'sound|1|dead#1|turn'", f"cantata:{LIMITS_KEY}:active"),
        ("'sound|1|dead#1|turn'", f"cantata:{LIMITS_KEY}:permits"),
        ("'sound|1|dead#1|turn'", SLOTS),
        ("1000 reserved_tokens", BUDGET),
        ("10000000 reserved_nano", BUDGET),
    ):
        assert (
            f"Redis: expected nothing reserved or held a lease after all runs are over; found {entry} in {place!r}"
            in found
        )


def test_who_still_waits_for_the_shared_limits_is_found(world: World) -> None:
    bounds, queue = Limits(models={MODEL: Rates(concurrency=1)}), f'["model:{MODEL}"]'.replace("/", "\\/")
    world.redis.sadd(SLOTS, "nobody")
    world.take("sound|1|dead#1|turn", bounds)

    assert f"found 'sound|turn' in {f'cantata:{LIMITS_KEY}:queue:{queue}'!r}" in said(world)


def test_a_call_that_died_a_lease_ago_is_given_up(world: World) -> None:
    world.take("sound|1|dead#1|turn")
    world.redis.zadd(f"cantata:{LIMITS_KEY}:active", {"sound|1|dead#1|turn": 1}, xx=True)

    assert said(world) == ""


def test_a_key_of_the_shared_limits_that_is_not_known_is_found(world: World) -> None:
    world.redis.set(f"cantata:{LIMITS_KEY}:other", 1, ex=60)

    assert f"expected no key of the shared limits but those of the suite's; found 'cantata:{LIMITS_KEY}:other'" in said(
        world
    )


def test_a_key_without_owner_or_expiry_is_found(world: World) -> None:
    world.redis.set("stray", 1)
    world.redis.persist(f"{KEY}:out")
    world.redis.set(f"{SHARD}:run:nobody:out", 1)

    found = said(world)

    assert "Redis: expected an owner or an expiry for each key; found 'stray', which has neither" in found
    assert f"run sound: expected an expiry for each key of a run that is succeeded; found none of '{KEY}:out'" in found
    assert "run nobody: expected no key of a run that is not kept" in found


@pytest.mark.parametrize(
    ("key", "entry"), [("tasks", f"{RUN}|1|task"), ("leases", f"{RUN}|1|{OWNER}|a"), ("due", f"retry|{RUN}|a")]
)
def test_what_is_still_to_be_done_for_a_run_that_is_over_is_found(world: World, key: str, entry: str) -> None:
    world.redis.zadd(f"{SHARD}:{key}", {entry: 9e15})

    assert f"run {RUN}: expected nothing in `{key}` of a run that is succeeded; found {entry!r}" in said(world)


def test_a_run_under_way_that_would_expire_is_found(world: World) -> None:
    world.redis.hset(KEY, "status", "running")

    assert f"run sound: expected no expiry while the run is running; found one of '{KEY}:out'" in said(world)


@pytest.mark.parametrize(
    ("name", "entry"), [("leases", f"{RUN}|1|{OWNER}|c"), ("ready", f"{RUN}|c"), ("due", f"retry|{RUN}|c")]
)
def test_work_that_is_left_for_a_run_that_is_over_is_found(world: World, name: str, entry: str) -> None:
    world.redis.zadd(f"{SHARD}:{name}", {entry: 1})

    assert f"run sound: expected nothing in `{name}` of a run that is succeeded; found {entry!r}" in said(world)


# sessions


CHAT = "chat"
TALK = f"{shard_key(None, conversations.shard_of_session(conversations.scoped('', CHAT)))}:session:{conversations.scoped('', CHAT)}"


class Talk:
    """A session of three turns that went well."""

    def __init__(self, redis: Redis, journal: Journal) -> None:
        self.redis = redis
        self.journal = journal
        place = RunSession(conversations.scoped("", CHAT), keep_s=60, max_entries=100, max_waiting=10)
        shard = conversations.shard_of_session(place.name)
        self.ids = list(islice((name for number in count() if shard_of(name := f"turn{number}") == shard), 3))
        plays = [Play(Ledger(redis), run_id, text=f"text {run_id}", session=place) for run_id in self.ids]
        for play in plays:
            journal.write(
                "accepted", run_id=play.run_id, tag=play.run_id, shape="talk", expected=f"answer {play.run_id}"
            )
            play.plan(work("ann", kind="agent.turn", work="agents:ann"), terminals=("ann",))
            journal.write("asked", agent="ann", tag=play.run_id)
            play.do("ann", f"answer {play.run_id}")

    @property
    def violations(self) -> str:
        """The violations, a line each."""
        return "\n".join(map(str, check(self.journal, self.redis)))

    def edit_history(self, edit: Callable[[list[str]], None]) -> None:
        """Write down anew what was said."""
        entries = cast("list[str]", self.redis.lrange(f"{TALK}:history", 0, -1))
        edit(entries)
        self.redis.delete(f"{TALK}:history")
        self.redis.rpush(f"{TALK}:history", *entries)
        self.redis.expire(f"{TALK}:history", 60)


@pytest.fixture
def talk(valkey: Redis, tmp_path: Path) -> Talk:
    """A sound session, for a test to doctor."""
    valkey.flushdb()
    return Talk(valkey, Journal(tmp_path / "journal.jsonl"))


def test_a_sound_session_has_no_violation(talk: Talk) -> None:
    assert talk.violations == ""


def test_a_turn_that_starts_before_the_one_before_it_is_closed_is_found(talk: Talk) -> None:
    key = f"{run_key(None, talk.ids[0])}:log"
    entries = cast("list[tuple[str, Fields]]", talk.redis.xrange(key))
    left_ms = talk.redis.pttl(key)
    talk.redis.delete(key)
    for entry, fields in entries:
        later = {**fields, "at": str(int(fields["at"]) + 5000)} if fields["t"] == "closed" else fields
        talk.redis.xadd(key, later, id=entry)  # type: ignore[arg-type]  # the stubs want wider keys
    talk.redis.pexpire(key, left_ms)

    assert (
        f"step @start: expected no start before {talk.ids[0]} (talk {talk.ids[0]}) is closed; found one "
        in talk.violations
    )


def test_a_model_that_is_asked_for_a_turn_before_its_time_is_found(talk: Talk) -> None:
    lines = talk.journal.lines()
    first = lines[0].at - 1
    early = [
        line.model_copy(update={"at": first}) if (line.what, line.tag) == ("asked", talk.ids[1]) else line
        for line in lines
    ]
    talk.journal.path.write_text("".join(f"{line.model_dump_json()}\n" for line in early))

    assert f"expected no model asked before {talk.ids[0]} (talk {talk.ids[0]}) is closed; found ann " in talk.violations


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (
            lambda entries: entries.pop(0),
            "expected ('user', 'text {0}') as entry 1 of its session; found ('assistant', 'answer {0}')",
        ),
        (
            lambda entries: entries.pop(),
            "expected ('assistant', 'answer {2}') as entry 6 of its session; found nothing more",
        ),
        (
            lambda entries: entries.append(entries[-1]),
            "expected nothing more as entry 7 of its session; found ('assistant', 'answer {2}')",
        ),
        (lambda entries: entries.insert(1, entries[1]), "as entry 3 of its session; found ('assistant', 'answer {0}')"),
        (lambda entries: entries.reverse(), "as entry 1 of its session; found ('assistant', 'answer {2}')"),
    ],
    ids=["lost", "unanswered", "twice", "answered twice", "in disorder"],
)
def test_what_was_said_and_is_lost_doubled_or_in_disorder_is_found(
    talk: Talk, edit: Callable[[list[str]], None], found: str
) -> None:
    talk.edit_history(edit)

    assert found.format(*talk.ids) in talk.violations


def test_a_turn_that_is_left_in_the_queue_is_found(talk: Talk) -> None:
    talk.redis.rpush(f"{TALK}:queue", talk.ids[2])

    found = talk.violations

    assert (
        f"run {talk.ids[2]}: expected nobody in the queue of a session when its turns are over; found it there" in found
    )
    assert f"found '{TALK}:queue', which has neither" in found


@pytest.mark.slow("a program starts from nothing")
def test_it_is_a_program_of_its_own(world: World) -> None:
    path = cast("dict[str, str]", world.redis.connection_pool.connection_kwargs)["path"]
    command = [sys.executable, "-m", "tests.faults.history", str(world.journal.path), "--redis", f"unix://{path}"]
    sound = subprocess.run(command, capture_output=True, text=True, check=False)
    world.redis.hset(f"{KEY}:out", "join", "4")
    doctored = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (sound.returncode, sound.stdout.strip(), sound.stderr) == (0, "", "")
    assert (doctored.returncode, doctored.stdout.strip()) == (
        1,
        "run sound (sample tag): expected the output 3; found 4",
    )
    assert START in world.play.ledger.reader.read(RUN).steps
