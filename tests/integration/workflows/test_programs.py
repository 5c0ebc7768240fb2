"""Generated programs of workflows: unchanged code is never refused, no signal is lost, and inline, several processes and replays agree.

The programs run on a real ledger and by the code of workers, in two processes with other orders of sets, which take turns. The test decides
which step is executed next, by whom and how, when a signal comes, and when a process forgets or dies.
`PROGRAMS=5000` tries so many programs, for a long search.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.engine.fleet import clock_skip
from cantata.flows.definitions import Definitions
from cantata.flows.graph import STEP_OVER
from cantata.flows.wire import RUN_OVER
from cantata.ledger.redis.keys import run_key
from cantata.ledger.runs.results import is_over
from cantata.operation.embedded import Stack
from cantata.testing import replay, run_inline
from cantata.testing.inline import _LocalApp, _runner, values_for
from tests.examples import thorough
from tests.integration.state.invariants import check_all
from tests.integration.workflows import odd_awaits, programs
from tests.integration.workflows.hands import Hands, Message, NoCosts, OtherHands

PROGRAMS = int(os.environ.get("PROGRAMS", thorough(15, plain=8)))
MAX_TURNS = 3000
SIGNALS = {name: name.upper() for name in programs.NAMES}
BY_SETTINGS = settings(
    max_examples=PROGRAMS,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


class World:
    """A ledger, a client, and two processes that execute steps."""

    def __init__(self, stack: Stack) -> None:
        workflows = {**programs.definitions().workflows, **odd_awaits.definitions().workflows}
        self.client = Client(stack.url, config=Definitions(workflows=workflows))
        self.client.engine.publisher = _LocalApp()
        self._other = OtherHands(stack.url, 17)
        self.hands: list[Hands | OtherHands] = [Hands(stack.url), self._other]

    def close(self) -> None:
        """End the other process, and close the connections."""
        self._other.stop()
        self.client.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world of these tests."""
    with Stack.start(tmp_path_factory.mktemp("programs"), server_only=True) as stack:
        made = World(stack)
        yield made
        made.close()


class Play:
    """One run of a program, whose steps are executed as `chance` says; without it, one after the other, as inline."""

    def __init__(self, world: World, name: str, given: dict[str, Any], chance: random.Random | None = None) -> None:
        self._world, self._chance, self._redis = world, chance, world.client.redis
        self._redis.flushdb()
        for each in world.hands:
            each.do("measure", bool(chance and chance.random() < 0.7))
        self.run = world.client.submit_workflow(name, given)
        assert isinstance(self.run, ChainRun)
        self.ready = self.new_messages()
        self._held: list[tuple[int, str, str]] = []  # whose hands, the lease, the step
        self._lost: set[str] = set()  # steps that crashed once
        self.sent: dict[str, list[str]] = defaultdict(list)
        self._turn = 0

    def new_messages(self) -> list[Message]:
        messages = self._world.client.app.messages  # type: ignore[attr-defined]
        found = [(each.run_id, each.steps, each.delivery.kind, each.delivery.queue) for each in messages]
        messages.clear()
        return found

    def do(self, whose: int, what: str, *given: Any) -> Any:
        result, messages, refused, lost = self._world.hands[whose].do(what, *given)
        assert not refused, refused
        assert not lost, f"signals that no code received: {lost}"
        self.ready += messages
        return result

    def to_its_end(self) -> tuple[bool, Any, str]:
        """Execute all of it; return how it ended."""
        while not is_over(self.run.status()):
            self._turn += 1
            assert self._turn < MAX_TURNS, self.run.record(()).steps
            if self._chance:
                self._take_a_turn(self._chance)
            elif self.ready:
                self._execute_first()
            elif not self._signal_all():
                self.skip()
        result = self.run.result(timeout_s=10)
        return result.success, result.final_output, result.error.message if result.error else ""

    # --- as inline

    def _execute_first(self) -> None:
        whose = self._turn % 2
        if self._turn % 3 == 0:
            self.do(whose, "forget")
        self.do(whose, "message", *self.ready.pop(0))

    def _signal_all(self) -> bool:
        steps = self.run.record(()).steps
        values = values_for([step_id for step_id, step in steps.items() if step.awaits_signal], SIGNALS)
        for step_id, value in values.items():
            self.run.signal(step_id, value)
        self.ready += self.new_messages()
        return bool(values)

    def skip(self) -> None:
        timers = clock_skip.timers_of(self._redis, self.run.run_id)
        own = [left_s for kind, left_s in timers.items() if kind != "deadline"]
        assert own, {
            step_id: step.state for step_id, step in self.run.record(()).steps.items() if step.state not in STEP_OVER
        }
        clock_skip.bring_nearer(self._redis, max(0.001, min(own)) + 0.002)  # Redis rounds now down, and this is rounded
        self.do(0, "sweep", self.run.run_id)

    # --- by chance

    def _take_a_turn(self, chance: random.Random) -> None:
        kind = chance.random()
        if kind < 0.15 and sum(map(len, self.sent.values())) < 12:
            self._signal(chance.choice(programs.NAMES))
        elif kind < 0.25:
            self.do(chance.randrange(2), "forget")
        elif kind < 0.32 and any(kind != "deadline" for kind in clock_skip.timers_of(self._redis, self.run.run_id)):
            self.skip()
        elif self._held and (kind < 0.55 or not self.ready):
            whose, lease, step_id = self._held.pop(chance.randrange(len(self._held)))
            self._end(whose, lease, step_id, chance.random())
        elif self.ready:
            run_id, steps, *delivery = self.ready.pop(chance.randrange(len(self.ready)))
            whose = chance.randrange(2)
            if kind < 0.8 or run_id != self.run.run_id:
                self.do(whose, "message", run_id, steps, *delivery)
            else:
                for step_id in steps:
                    lease = self.do(whose, "begin", run_id, step_id)
                    self._held += [(whose, lease, step_id)] if lease else []
        elif not self._held:
            self._check_signals()
            waiting = [step_id for step_id, step in self.run.record(()).steps.items() if step.awaits_signal]
            if waiting and chance.random() < 0.6:
                self._signal(chance.choice(waiting).rpartition("/")[2])
            elif not waiting or any(kind != "deadline" for kind in clock_skip.timers_of(self._redis, self.run.run_id)):
                self.skip()

    def _end(self, whose: int, lease: str, step_id: str, kind: float) -> None:
        if kind < 0.7 or step_id in self._lost:
            self.do(whose, "commit", lease)
            return
        self._lost.add(step_id)
        self.do(whose, "release" if kind < 0.85 else "crash", lease)
        self.do(whose, "sweep", self.run.run_id)

    def _signal(self, name: str) -> None:
        value = f"{name}{len(self.sent[name])}"
        answer = self.run.signal(name, value)
        self.ready += self.new_messages()
        if answer == "unclear":  # several wait: which one is meant
            steps = self.run.record(()).steps
            found = [step_id for step_id, step in steps.items() if step.awaits_signal and step_id.endswith(f"/{name}")]
            answer = self.run.signal(found[-1], value)
            self.ready += self.new_messages()
        if answer in ("taken", "kept"):
            self.sent[name].append(value)
        else:
            assert answer == "closed", answer

    def _check_signals(self) -> None:
        """Nothing is under way: each signal ended one wait of its name, or is kept, and no wait of that name is open."""
        kept: dict[str, list[str]] = defaultdict(list)
        fields = cast("dict[str, str]", self._redis.hgetall(f"{run_key(self._redis, self.run.run_id)}:signals"))
        for field, value in fields.items():
            kept[field.partition("\n")[0]].append(json.loads(value.partition("\n")[0]))
        steps = self.run.record().steps
        if self.run.status() in RUN_OVER:
            return
        for name, sent in self.sent.items():
            waits = [step for step_id, step in steps.items() if step_id.endswith(f"wait/{name}")]
            received = [
                step.output
                for step in waits
                if step.state == "done" and not step.info.keys() & {"timed_out", "passed_on"}
            ]
            assert Counter([*received, *kept[name]]) == Counter(sent), (name, received, kept[name], sent)
            assert not (kept[name] and any(step.awaits_signal for step in waits)), (
                f"{name!r} waits, and {kept[name]} is kept"
            )


class Waiting:
    """A run of a workflow whose commands have not begun; the test executes its steps one by one."""

    def __init__(self, world: World, name: str) -> None:
        self.play = Play(world, name, {})
        self.hands = world.hands[0]
        while (
            not any(step_id.partition("/")[2] for _, steps, *_ in self.play.ready for step_id in steps)
            and self.play.ready
        ):
            self.play.do(0, "message", *self.play.ready.pop(0))
        self.steps = {step_id: run_id for run_id, steps, *_ in self.play.ready for step_id in steps}

    def execute(self, step_id: str) -> None:
        """Execute a command that is ready."""
        self.play.do(0, "commit", self.play.do(0, "begin", self.play.run.run_id, step_id))


@pytest.mark.parametrize("name", ["in_turn", "called_back"])
def test_outcomes_that_arrive_together_come_in_the_order_of_the_ledger(world: World, name: str) -> None:
    waiting = Waiting(world, name)
    order = [7, 0, 11, 3, 10, 2, 1, 9, 8, 4, 6, 5]

    for number in order:
        waiting.execute(f"{name}/{number}.add")

    assert waiting.play.to_its_end()[1] == [number + 1 for number in order]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_signals_that_arrive_together_come_in_their_order_also_inline(world: World, order: str) -> None:
    waiting = Waiting(world, "two_kinds")
    for name in order:
        assert waiting.play.run.signal(name, name) == "taken"
    waiting.play.ready += waiting.play.new_messages()

    assert waiting.play.to_its_end()[1] == [[name, name] for name in order]
    inline = run_inline("two_kinds", definitions=world.client.definitions, signals={name: name for name in order})
    assert inline.final_output == [[name, name] for name in order]


def test_kept_signals_and_equal_timers_come_in_the_order_of_their_waits(world: World) -> None:
    waiting = Waiting(world, "naps_first")
    for value in range(12):
        assert waiting.play.run.signal("a", value) == "kept"

    assert waiting.play.to_its_end()[1] == [*range(12)]
    assert Play(world, "sleeps_alike", {}).to_its_end()[1] == [*range(12)]


@pytest.mark.parametrize("ends", ["timeout", "again"])
def test_a_signal_that_comes_while_the_code_gives_its_wait_up_is_for_the_next_wait(world: World, ends: str) -> None:
    waiting = Waiting(world, f"{ends}_and_wait")
    play = waiting.play
    play.skip()
    (run_id, (advance,), *_) = play.ready.pop()
    lease = play.do(0, "begin", run_id, advance)  # the code has given its wait up, which is not recorded yet

    assert [play.run.signal("a", value, by="anna") for value in ("one", "two")] == ["taken", "kept"]
    play.ready += play.new_messages()
    play.do(0, "commit", lease)

    check_all(world.client.redis)
    success, output, _ = play.to_its_end()
    assert (success, output) == (True, ["one", "two"])
    waits = [step for step_id, step in play.run.record().steps.items() if step_id.endswith("wait/a")]
    assert [(step.output, step.info.get("passed_on")) for step in waits] == [
        ("one", True),
        ("one", None),
        ("two", None),
    ]
    assert all(step.info["answered_by"] == "anna" for step in waits)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # likewise
@BY_SETTINGS
@given(code=programs.programs(), seed=strategies.integers(0, 2**32))
def test_a_program_in_any_order(world: World, code: programs.Block, seed: int) -> None:
    check_in_any_order(world, "program", {"code": code}, seed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # likewise
@BY_SETTINGS
@given(code=programs.programs())
def test_a_program_gives_the_same_inline(world: World, code: programs.Block) -> None:
    check_inline(world, "program", {"code": code})


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # generators that are dropped with the code that waits
@pytest.mark.parametrize("name", odd_awaits.NAMES)
def test_an_odd_await(world: World, name: str) -> None:
    check_inline(world, name, {})
    for seed in range(thorough(3, plain=1)):
        check_in_any_order(world, name, {}, seed)


def check_in_any_order(world: World, name: str, given: dict[str, Any], seed: int) -> None:
    """Execute a workflow as a seed says, and replay its recording."""
    play = Play(world, name, given, random.Random(seed))

    success, output, _ = play.to_its_end()

    check_all(world.client.redis)
    if success and seed % 4 == 0:  # it takes a third of the time
        comparison = replay(json.loads("".join(play.run.export())), definitions=world.client.definitions)
        assert (comparison.same, comparison.now.output) == (True, output), str(comparison)


def check_inline(world: World, name: str, given: dict[str, Any]) -> None:
    """Execute a workflow inline, and then in turns by two processes that forget it; measured costs do not change the order."""
    process = _runner().process
    costs, process.costs = process.costs, NoCosts()
    node = {"node_id": name, "kind": "workflow", "name": name, "input": given}
    try:
        inline = run_inline(
            {"nodes": [node], "entry_node": name}, definitions=world.client.definitions, signals=SIGNALS
        )
    finally:
        process.costs = costs

    played = Play(world, name, given).to_its_end()

    assert played == (inline.success, inline.final_output, inline.error.message if inline.error else "")
