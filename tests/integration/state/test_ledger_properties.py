"""The ledger against its reference: graphs that grow at random, and messages that come twice, late, in any order, or never."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import ClassVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cantata.flows.graph import START, Graph, Outcome
from cantata.ledger import scripts
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, Begun, Committed, Ready
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.values import ErrorInfo, JsonValue
from tests.examples import examples
from tests.integration.state import invariants
from tests.integration.state.play import Play, wait, work
from tests.integration.state.reference import Reference
from tests.integration.state.shapes import LATER_S, fragments

RUN = "run"
OTHER = next(name for name in (f"other{n}" for n in range(10_000)) if shard_of(name) == shard_of(RUN))
"""A run in the same shard, to which nothing may happen."""

SHARD = shard_key(None, shard_of(RUN))
SIZE = 40
"""Steps at which a run grows no further."""

Data = st.DataObject


def chance(data: Data, one_in: int) -> bool:
    """True once in so many times; false is simpler."""
    return data.draw(st.integers(0, one_in - 1)) == one_in - 1


class Runs(RuleBasedStateMachine):
    """One run at a time, its workers, and what lies in the broker."""

    ledger: ClassVar[Ledger]
    in_pieces: ClassVar[bool] = False
    """Nearly every call leaves work to later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.redis = self.ledger.redis
        self.redis.flushdb()
        other = Play(self.ledger, OTHER)
        other.plan(work("running"), work("sent"), work("retrying"), wait("parked", timeout_s=LATER_S))
        other.begin("running")
        other.commit(other.begin("retrying"), outcome=Outcome(status="retry", retry_in_s=LATER_S))
        self.other = invariants.take(self.redis, OTHER)

    def accept(self, data: Data) -> None:
        self.model = Reference(data.draw(st.integers(1, 3)), data.draw(st.integers(SIZE // 2, 2 * SIZE)))
        self.mail = [START]
        self.held: list[Begun] = []
        self.handed_back: set[str] = set()
        self.told: dict[str, Outcome] = {}
        self.outcomes: dict[str, tuple[str | None, str | None]] = {}
        self.expanded = self.outputs = 0
        assert Play(
            self.ledger, RUN, timeout_s=LATER_S, max_attempts=self.model.max_attempts, max_steps=self.model.max_steps
        ).new

    # --- what may happen --------------------------------------------------------------------------------------------

    @initialize(data=st.data())
    def start(self, data: Data) -> None:
        self.accept(data)
        self.do(START, Outcome(fragment=self.draw_fragment(data, START)))

    @precondition(lambda self: self.mail)
    @rule(data=st.data())
    def work_through(self, data: Data) -> None:
        """A worker takes some messages and does what they say."""
        for _ in range(data.draw(st.integers(1, 4))):
            if self.mail:
                self.receive(data)
            if live := self.live():
                self.commit(live[-1], self.draw_outcome(data, live[-1].step_id), self.draw_ahead(data))

    @precondition(lambda self: self.mail)
    @rule(data=st.data())
    def receive(self, data: Data) -> None:
        """A message arrives; it may arrive again."""
        at = data.draw(st.integers(0, len(self.mail) - 1))
        step_id = self.mail[at] if chance(data, 6) else self.mail.pop(at)
        self.begin(step_id, f"worker{data.draw(st.integers(0, 1))}")

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def finish(self, data: Data) -> None:
        """A worker tells an outcome."""
        begun = data.draw(st.sampled_from(self.live()))
        self.commit(begun, self.draw_outcome(data, begun.step_id), self.draw_ahead(data))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish_late(self, data: Data) -> None:
        """A worker tells an outcome of any attempt there ever was, or what it told before."""
        begun = data.draw(st.sampled_from(self.held))
        outcome = self.told.get(begun.lease) if data.draw(st.booleans()) else None
        self.commit(begun, outcome or self.draw_outcome(data, begun.step_id), self.draw_ahead(data))

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def lose_a_worker(self, data: Data) -> None:
        """A lease runs out; its step may be begun again before the worker that lost it tells its outcome."""
        begun = data.draw(st.sampled_from(self.live()))
        self.hurry("leases", begun.lease)
        self.sweep(self.model.lose(begun.step_id), lost=1)
        if data.draw(st.booleans()):
            self.begin(begun.step_id, begun.owner)
            self.commit(begun, self.draw_outcome(data, begun.step_id))

    @precondition(lambda self: self.timers())
    @rule(data=st.data())
    def ring(self, data: Data) -> None:
        """A timer comes due."""
        what, step_id = data.draw(st.sampled_from(self.timers()))
        self.hurry("due", f"{what}|{RUN}|{step_id}")
        self.sweep(self.model.ring(what, step_id))

    @precondition(lambda self: self.sent())
    @rule(data=st.data())
    def lose_messages(self, data: Data) -> None:
        """The broker loses all its messages; some are missed."""
        self.mail.clear()
        missed = data.draw(st.lists(st.sampled_from(sorted(self.sent())), unique=True, min_size=1))
        self.miss(missed)

    @rule(data=st.data())
    def meddle(self, data: Data) -> None:
        """What happens seldom."""
        data.draw(
            st.sampled_from([self.receive_what_was_never_sent, self.signal, self.hand_back, self.renew, self.end])
        )(data)

    def receive_what_was_never_sent(self, data: Data) -> None:
        """A message names any step, even one that does not exist."""
        self.begin(data.draw(st.sampled_from([*self.model.cells, "nothing"])), "worker0")

    def signal(self, data: Data) -> None:
        """A signal comes for any step, even one that does not exist yet."""
        waits = [step_id for step_id, cell in self.model.cells.items() if cell.spec.kind == "wait"]
        self.give(data.draw(st.sampled_from([*waits, f"{self.expanded + 1}a", START])))

    def hand_back(self, data: Data) -> None:
        """A worker that stops hands a step back, or thinks it does."""
        begun = data.draw(st.sampled_from(self.held))
        ready = self.ledger.steps.release(begun)
        assert ids(ready) == self.model.release(begun.step_id, begun.attempt, begun.owner)
        self.handed_back |= ids(ready)
        self.mail += sorted(ids(ready))

    def renew(self, _: Data) -> None:
        """A worker keeps its leases alive, and learns which are lost."""
        live = {begun.lease for begun in self.live()}
        assert (
            self.ledger.leases.renew([begun.lease for begun in self.held])
            == {begun.lease for begun in self.held} - live
        )

    def end(self, data: Data) -> None:
        """Somebody cancels the run, or its time is over."""
        if chance(data, 8):
            self.model.cancel()
            assert self.ledger.runs.cancel(RUN) == self.model.status
        elif chance(data, 8) and not self.model.is_over and not self.model.stands_still:
            self.hurry("due", f"deadline|{RUN}|")
            self.sweep(self.model.ring("deadline", ""))

    @precondition(lambda self: self.model.is_over)
    @rule(data=st.data())
    def start_another(self, data: Data) -> None:
        """The run is forgotten, and its id is used again."""
        for key in cast("list[str]", self.redis.keys(f"{SHARD}:run:{RUN}*")):
            self.redis.delete(key)
        self.start(data)

    # --- how it is told to both -------------------------------------------------------------------------------------

    def begin(self, step_id: str, owner: str) -> None:
        answer = self.ledger.steps.begin(RUN, step_id, owner)

        told_owner = answer.owner if isinstance(answer, Begun) else owner
        assert ("begun" if isinstance(answer, Begun) else answer) == self.model.begin(step_id, told_owner)
        if isinstance(answer, Begun):
            self.hold(answer)

    def hold(self, begun: Begun) -> None:
        cell = self.model.cells[begun.step_id]
        assert (begun.attempt, begun.failures, begun.owner) == (cell.attempt, cell.failures, cell.owner)
        self.held.append(begun)
        self.handed_back.discard(begun.step_id)

    def commit(self, begun: Begun, outcome: Outcome, ahead: Ahead | None = None) -> None:
        self.outputs += 1
        answer = self.ledger.steps.commit(begun, outcome, output=str(self.outputs), info=info_of(outcome), ahead=ahead)

        word, ready = self.model.commit(begun.step_id, begun.attempt, begun.owner, outcome)
        assert answer.result == word
        if word == "ok":
            self.told[begun.lease] = outcome
        if ahead is not None:
            self.check_ahead(answer, ready if word == "ok" else set(), ahead)
        if answer.begun is not None:
            ready = ready - {answer.begun.step_id}
            self.model.start(answer.begun.step_id, answer.begun.owner)
            self.hold(answer.begun)
        assert self.still_open(answer.sends) == ready
        assert len(ids(answer.sends)) == len(answer.sends)
        assert answer.run_status == self.model.status
        self.mail += sorted(ids(answer.sends))  # the same in each process, as all that is drawn

    def check_ahead(self, answer: Committed, ready: set[str], ahead: Ahead) -> None:
        begun = answer.begun.step_id if answer.begun else ""
        if self.in_pieces and not begun:  # what follows may stop it
            return
        specs = {step_id: self.model.cells[step_id].spec for step_id in ready}
        if any(spec.decides for spec in specs.values()):
            assert specs[begun].decides, "a decision is made at once"
        elif begun in ready:
            assert len(ready) == 1, "of several steps none is begun ahead, but for decisions"
            assert specs[begun].cheap
            assert specs[begun].queue == ahead.queue
        else:
            may = not self.model.is_over and ahead.next_step in self.sent()
            assert begun == (ahead.next_step if may else "")

    def sweep(self, ready: set[str], *, lost: int = 0, overdue: frozenset[str] = frozenset()) -> None:
        swept = self.ledger.leases.sweep(shard_of(RUN))

        assert {run_id for run_id, _ in swept.sends} <= {RUN}
        expected = ready | (self.handed_back & self.sent())
        assert self.still_open(step for _, step in swept.sends) == expected
        assert self.in_pieces or len(swept.sends) == len(expected)
        self.handed_back.clear()
        assert swept.lost == lost
        found = {step.step_id for step in swept.overdue if step.run_id == RUN}
        assert overdue <= found <= self.sent()
        self.mail += [*sorted(ready), *sorted(found)]

    def miss(self, step_ids: list[str]) -> None:
        for step_id in step_ids:
            self.hurry("ready", f"{RUN}|{step_id}")
            self.handed_back.discard(step_id)
        self.sweep(set(), overdue=frozenset(step_ids))

    def give(self, name: str) -> None:
        word, ready = self.ledger.steps.signal(RUN, name, name)
        expected, sent = self.model.signal(name)
        assert (word, self.still_open(ready)) == (expected, sent)
        self.mail += sorted(ids(ready))

    def do(self, step_id: str, outcome: Outcome) -> None:
        self.begin(step_id, "worker0")
        self.commit(self.held[-1], outcome)

    def hurry(self, where: str, member: str) -> None:
        assert self.redis.zadd(f"{SHARD}:{where}", {member: 1.0}, xx=True, ch=True) == 1

    def still_open(self, ready: Iterable[Ready]) -> set[str]:
        """The steps to send; in pieces without those that a later piece stopped, whose messages do nothing."""
        return {step_id for step_id in ids(ready) if not (self.in_pieces and self.model.cells[step_id].is_over)}

    # --- what is going on -------------------------------------------------------------------------------------------

    def live(self) -> list[Begun]:
        """The attempts that count."""
        cells = self.model.cells
        return [
            begun
            for begun in self.held
            if (cell := cells[begun.step_id]).word == "running"
            and (cell.attempt, cell.owner) == (begun.attempt, begun.owner)
        ]

    def sent(self) -> set[str]:
        """The steps that wait for a worker."""
        return {step_id for step_id, cell in self.model.cells.items() if cell.word == "sent"}

    def timers(self) -> list[tuple[str, str]]:
        """The timers that may ring."""
        found = []
        for step_id, cell in self.model.cells.items():
            if cell.word == "waiting" and cell.failures:
                found.append(("retry", step_id))
            elif cell.is_open and cell.spec.deadline_s:
                found.append(("join", step_id))
            elif cell.word == "waiting_signal" and cell.spec.timeout_s:
                found.append(("wait", step_id))
        return found

    # --- what holds -------------------------------------------------------------------------------------------------

    @invariant()
    def ledger_and_reference_agree(self) -> None:
        """After each operation."""
        picture = invariants.take(self.redis, RUN)
        assert picture.status == self.model.status
        told = {
            step_id: (cell.word, cell.attempt, cell.failures, cell.owner) for step_id, cell in picture.cells.items()
        }
        assert told == {
            step_id: (cell.word, cell.attempt, cell.failures, cell.owner) for step_id, cell in self.model.cells.items()
        }
        invariants.check(picture)
        for step_id, outcome in self.outcomes.items():
            assert (picture.outs.get(step_id), picture.infos.get(step_id)) == outcome, (
                f"the outcome of {step_id} stands"
            )
        for step_id, cell in picture.cells.items():
            if cell.is_over:
                self.outcomes[step_id] = (picture.outs.get(step_id), picture.infos.get(step_id))

    def teardown(self) -> None:
        """Whatever happened, the run can be brought to its end, and no other was touched."""
        if sys.exc_info()[0] is not None:
            return
        self.bring_to_its_end()
        assert self.model.is_over
        invariants.check_keys(self.redis, RUN)
        assert invariants.take(self.redis, OTHER) == self.other

    def bring_to_its_end(self) -> None:
        while not self.model.is_over:
            assert self.goes_on(), "a run never hangs"
            self.ledger_and_reference_agree()

    def goes_on(self) -> bool:
        """Do the next thing that brings the run nearer to its end, if there is one."""
        retries = [step_id for what, step_id in self.timers() if what == "retry"]
        parked = [step_id for step_id, cell in self.model.cells.items() if cell.word == "waiting_signal"]
        if live := self.live():
            self.commit(live[0], Outcome())
        elif sent := sorted(self.sent()):
            self.miss(sent)
            self.do(sent[0], Outcome())
        elif retries:
            self.hurry("due", f"retry|{RUN}|{retries[0]}")
            self.sweep(self.model.ring("retry", retries[0]))
        elif parked:
            self.give(parked[0])
        else:
            return False
        return True

    # --- chance -----------------------------------------------------------------------------------------------------

    def draw_ahead(self, data: Data) -> Ahead | None:
        if data.draw(st.booleans()):
            return None
        following = data.draw(st.sampled_from(["", *self.mail]))
        return Ahead("tools", "\ntiny\n", following)

    def draw_outcome(self, data: Data, step_id: str) -> Outcome:
        how = data.draw(st.sampled_from(["done", "done", "grow", "grow", "grow", "failed", "retry"]))
        error = ErrorInfo(code="broke", message="it broke", step=step_id)
        if how == "failed":
            return Outcome(status="failed", error=error)
        if how == "retry":
            return Outcome(status="retry", error=error, retry_in_s=LATER_S)
        takes = data.draw(st.sampled_from([("done",), ("done",), ("done", "left"), ("left",), ()]))
        if how == "grow" and len(self.model.cells) < SIZE:
            return Outcome(takes=takes, fragment=self.draw_fragment(data, step_id))
        return Outcome(takes=takes)

    def draw_fragment(self, data: Data, parent: str) -> Graph:
        self.expanded += 1
        return data.draw(fragments(self.model, parent, self.expanded))


def ids(ready: Iterable[Ready]) -> set[str]:
    """Which steps to send."""
    return {one.step_id for one in ready}


def bound_calls(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let scripts begin nothing more after so many commands, so that nearly every call leaves work to later ones."""
    name, bound = "ledger/lib", "local MAX_CALLS = 1000"
    assert scripts.TEXTS[name].count(bound) == 1
    monkeypatch.setitem(scripts.TEXTS, name, scripts.TEXTS[name].replace(bound, f"local MAX_CALLS = {most}"))
    monkeypatch.setattr(scripts.SCRIPTS, "_known", {})


def info_of(outcome: Outcome) -> dict[str, JsonValue]:
    """How a step ended, as the workers tell it."""
    info: dict[str, JsonValue] = {} if outcome.takes == ("done",) else {"takes": list(outcome.takes)}
    return info if outcome.error is None else {**info, "error": outcome.error.model_dump()}


@pytest.mark.slow("many runs of many steps, each beside a reference")
@pytest.mark.timeout(600)  # to find the smallest way to fail, if it fails
@pytest.mark.parametrize("most", [None, 12], ids=["whole", "in pieces"])
def test_whatever_happens_the_ledger_does_as_the_reference(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    if most:
        bound_calls(monkeypatch, most)
    monkeypatch.setattr(Runs, "in_pieces", most is not None)
    unhurried = Ledger(
        ledger.redis, lease_s=LATER_S
    )  # leases run out when the test says so, not when the machine is slow
    monkeypatch.setattr(Runs, "ledger", unhurried, raising=False)
    run_state_machine_as_test(
        Runs,
        settings=settings(
            parent=examples(50 if most else 150),
            stateful_step_count=40,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
