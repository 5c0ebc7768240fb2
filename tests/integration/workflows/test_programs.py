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
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.embedded import Stack
from cantata.models.graph import STEP_OVER
from cantata.models.wire import RUN_OVER
from cantata.runs.results import is_over
from cantata.state.fleet import clock_skip
from cantata.state.redis.keys import run_key
from cantata.testing import replay, run_inline
from cantata.testing.inline import _LocalApp, values_for
from tests.examples import FEWER
from tests.integration.state.invariants import check_all
from tests.integration.workflows import programs
from tests.integration.workflows.hands import Hands, Message, OtherHands

PROGRAMS = int(os.environ.get("PROGRAMS", 100 // FEWER))
MAX_TURNS = 3000
SIGNALS = {name: name.upper() for name in programs.NAMES}
BY_SETTINGS = settings(
    max_examples=PROGRAMS, deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck), print_blob=True
)


class World:
    """A ledger, a client, and two processes that execute steps."""

    def __init__(self, stack: Stack) -> None:
        self.client = Client(stack.url, config=programs.definitions())
        self.client.app = _LocalApp()
        self.hands: list[Hands | OtherHands] = [Hands(stack.url), OtherHands(stack.url, 17)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world of these tests."""
    with Stack.start(tmp_path_factory.mktemp("programs"), server_only=True) as stack:
        made = World(stack)
        yield made
        for each in made.hands:
            each.stop()
        made.client.close()


class Play:
    """One run of a program, whose steps are executed as `chance` says; without it, one after the other, as inline."""

    def __init__(self, world: World, code: programs.Block, chance: random.Random | None) -> None:
        self._world, self._chance, self._redis = world, chance, world.client.redis
        self._redis.flushdb()
        self.run = world.client.submit_workflow("program", {"code": code})
        assert isinstance(self.run, ChainRun)
        self._ready = self._new_messages()
        self._held: list[tuple[int, str, str]] = []  # whose hands, the lease, the step
        self._lost: set[str] = set()  # steps that crashed once
        self.sent: dict[str, list[str]] = defaultdict(list)
        self._turn = 0

    def _new_messages(self) -> list[Message]:
        messages = self._world.client.app.messages  # type: ignore[attr-defined]
        found = [(each.run_id, each.steps, each.delivery.kind, each.delivery.queue) for each in messages]
        messages.clear()
        return found

    def _do(self, whose: int, what: str, *given: Any) -> Any:
        result, messages, refused, lost = self._world.hands[whose].do(what, *given)
        assert not refused, refused
        assert not lost, f"signals that no code received: {lost}"
        self._ready += messages
        return result

    def to_its_end(self) -> tuple[bool, Any, str]:
        """Execute all of it; return how it ended."""
        while not is_over(self.run.status()):
            self._turn += 1
            assert self._turn < MAX_TURNS, self.run.record(()).steps
            if self._chance:
                self._take_a_turn(self._chance)
            elif self._ready:
                self._execute_first()
            elif not self._signal_all():
                self._skip()
        result = self.run.result(timeout_s=10)
        return result.success, result.final_output, result.error.message if result.error else ""

    # --- as inline

    def _execute_first(self) -> None:
        whose = self._turn % 2
        if self._turn % 3 == 0:
            self._do(whose, "forget")
        self._do(whose, "message", *self._ready.pop(0))

    def _signal_all(self) -> bool:
        steps = self.run.record(()).steps
        values = values_for([step_id for step_id, step in steps.items() if step.awaits_signal], SIGNALS)
        for step_id, value in values.items():
            self.run.signal(step_id, value)
        self._ready += self._new_messages()
        return bool(values)

    def _skip(self) -> None:
        timers = clock_skip.timers_of(self._redis, self.run.run_id)
        own = [left_s for kind, left_s in timers.items() if kind != "deadline"]
        assert own, {step_id: step.state for step_id, step in self.run.record(()).steps.items() if step.state not in STEP_OVER}
        clock_skip.bring_nearer(self._redis, max(0.001, min(own)))
        self._do(0, "sweep", self.run.run_id)

    # --- by chance

    def _take_a_turn(self, chance: random.Random) -> None:
        kind = chance.random()
        if kind < 0.15 and sum(map(len, self.sent.values())) < 12:
            self._signal(chance.choice(programs.NAMES))
        elif kind < 0.25:
            self._do(chance.randrange(2), "forget")
        elif kind < 0.32 and any(kind != "deadline" for kind in clock_skip.timers_of(self._redis, self.run.run_id)):
            self._skip()
        elif self._held and (kind < 0.55 or not self._ready):
            whose, lease, step_id = self._held.pop(chance.randrange(len(self._held)))
            self._end(whose, lease, step_id, chance.random())
        elif self._ready:
            run_id, steps, *delivery = self._ready.pop(chance.randrange(len(self._ready)))
            whose = chance.randrange(2)
            if kind < 0.8 or run_id != self.run.run_id:
                self._do(whose, "message", run_id, steps, *delivery)
            else:
                for step_id in steps:
                    lease = self._do(whose, "begin", run_id, step_id)
                    self._held += [(whose, lease, step_id)] if lease else []
        elif not self._held:
            self._check_signals()
            waiting = [step_id for step_id, step in self.run.record(()).steps.items() if step.awaits_signal]
            if waiting and chance.random() < 0.6:
                self._signal(chance.choice(waiting).rpartition("/")[2])
            elif not waiting or any(kind != "deadline" for kind in clock_skip.timers_of(self._redis, self.run.run_id)):
                self._skip()

    def _end(self, whose: int, lease: str, step_id: str, kind: float) -> None:
        if kind < 0.7 or step_id in self._lost:
            self._do(whose, "commit", lease)
            return
        self._lost.add(step_id)
        self._do(whose, "release" if kind < 0.85 else "crash", lease)
        self._do(whose, "sweep", self.run.run_id)

    def _signal(self, name: str) -> None:
        value = f"{name}{len(self.sent[name])}"
        answer = self.run.signal(name, value)
        self._ready += self._new_messages()
        if answer == "unclear":  # several wait: which one is meant
            steps = self.run.record(()).steps
            found = [step_id for step_id, step in steps.items() if step.awaits_signal and step_id.endswith(f"/{name}")]
            answer = self.run.signal(found[-1], value)
            self._ready += self._new_messages()
        if answer in ("taken", "kept"):
            self.sent[name].append(value)
        else:
            assert answer == "closed", answer

    def _check_signals(self) -> None:
        """Nothing is under way: each signal ended one wait of its name, or is kept, and no wait of that name is open."""
        kept: dict[str, list[str]] = defaultdict(list)
        for field, value in self._redis.hgetall(f"{run_key(self._redis, self.run.run_id)}:signals").items():
            kept[field.partition("\n")[0]].append(json.loads(value.partition("\n")[0]))
        steps = self.run.record().steps
        if self.run.status() in RUN_OVER:
            return
        for name, sent in self.sent.items():
            waits = [step for step_id, step in steps.items() if step_id.endswith(f"wait/{name}")]
            received = [step.output for step in waits if step.state == "done" and not step.info.get("timed_out")]
            assert Counter([*received, *kept[name]]) == Counter(sent), (name, received, kept[name], sent)
            assert not (kept[name] and any(step.awaits_signal for step in waits)), f"{name!r} waits, and {kept[name]} is kept"


@BY_SETTINGS
@given(code=programs.programs(), seed=strategies.integers(0, 2**32))
def test_a_program_in_any_order(world: World, code: programs.Block, seed: int) -> None:
    play = Play(world, code, random.Random(seed))

    success, output, _ = play.to_its_end()

    check_all(world.client.redis)
    if success and seed % 4 == 0:  # it takes a third of the time
        comparison = replay(json.loads("".join(play.run.export())), definitions=programs.definitions())
        assert (comparison.same, comparison.now.output) == (True, output), str(comparison)


@BY_SETTINGS
@given(code=programs.programs())
def test_a_program_gives_the_same_inline(world: World, code: programs.Block) -> None:
    node = {"node_id": "program", "kind": "workflow", "name": "program", "input": {"code": code}}
    inline = run_inline({"nodes": [node], "entry_node": "program"}, definitions=programs.definitions(), signals=SIGNALS)

    played = Play(world, code, None).to_its_end()

    assert played == (inline.success, inline.final_output, inline.error.message if inline.error else "")


