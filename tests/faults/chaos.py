"""Chaos with a seed: workers are killed, frozen and stopped, connections are cut, Redis is killed and filled, while runs are under way."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from cantata.ledger.redis.connection import Redis, RedisFailure, connect
from tests.faults import history
from tests.faults.load import Load
from tests.faults.past import Violation
from tests.faults.processes import children, family
from tests.faults.shapes import ANYWHERE
from tests.faults.stage import Stage, stage

AT_ONCE = 15
GAP_S = 1.5  # between two actions, in the mean
FREEZES_S, FULL_S = (3.0, 12.0), (2.0, 4.0)

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Action:
    """What is done when, to the one of those there are that chance says."""

    at_s: float
    what: str
    whom: float
    lasts: float
    """From 0 to 1, of the time that such an action may last."""


def plan(seed: int, seconds: float, weights: Mapping[str, int] | None = None, *, gap_s: float = GAP_S) -> list[Action]:
    """The actions of a seed, all or some, and how often of all each; a longer plan begins like a shorter one."""
    chance, at_s, actions = random.Random(seed), 0.0, []
    weights = weights or {name: weight for name, (_, weight) in ACTIONS.items()}
    while (at_s := at_s + chance.expovariate(1 / gap_s)) < seconds:
        actions.append(
            Action(at_s, chance.choices(list(weights), list(weights.values()))[0], chance.random(), chance.random())
        )
    return actions


def wreak(folder: Path, seed: int, seconds: float) -> tuple[int, list[Violation]]:
    """Do a plan under load; when all is healed, how many runs there were, and what is wrong."""
    with stage(folder) as world, (folder / "actions.log").open("w", buffering=1) as log:
        load = Load(world, seed, lambda chance: (world.client, chance.choice(ANYWHERE)), at_once=AT_ONCE)
        havoc = Havoc(world, lambda text: log.write(f"{text}\n"))
        load.start()
        try:
            havoc.do(plan(seed, seconds))
        finally:
            havoc.heal()
            load.end()
        world.wait_whole()
        return len(load.runs), history.check(world.journal, world.client.redis)


class Havoc:
    """Does actions at their time, and undoes those that last."""

    def __init__(self, stage: Stage, say: Callable[[str], object]) -> None:
        self._stage = stage
        self._say = say
        self._since = time.monotonic()
        self._undo: list[tuple[float, Callable[[], None]]] = []

    def do(self, actions: Sequence[Action]) -> None:
        """Do all of them."""
        self._since = time.monotonic()
        for action in actions:
            self._undo_until(self._since + action.at_s)
            done, _ = ACTIONS[action.what]
            self._tell(action.what, done(self, action) or "nobody")

    def heal(self) -> None:
        """Undo at once what would last longer."""
        for _, undo in self._undo:
            undo()
        self._undo.clear()

    # --- actions: each answers to whom it was done ------------------------------------------------------------------

    def kill_worker(self, action: Action) -> str | None:
        """SIGKILL to a worker."""
        return self._kill(self._workers(), action)

    def kill_child(self, action: Action) -> str | None:
        """SIGKILL to a process that does the steps of a tools worker, or to one of the user's worker."""
        return self._kill(self._children(), action)

    def kill_user_worker(self, action: Action) -> str | None:
        """SIGKILL to all processes of the user's worker, which is started again."""
        if not self._stage.user_worker:
            return None
        self._stage.start_user_worker()
        return f"the next is {self._stage.user_worker.pid}"

    def stop_worker(self, action: Action) -> str | None:
        """SIGTERM to a worker, which drains."""
        return self._signal(self._workers(), action, signal.SIGTERM)

    def freeze(self, action: Action) -> str | None:
        """SIGSTOP to a worker or a child, and SIGCONT some seconds later."""
        victims = self._workers() + self._children()
        lasts_s = _between(FREEZES_S, action)
        if not victims:
            return None
        name, pid = _choose(victims, action)
        self._stage.note_frozen(pid, lasts_s)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._later(lasts_s, partial(self._wake, name, pid, time.time()))
        return f"{name} ({pid}) for {lasts_s:.1f} s"

    def cut(self, action: Action) -> str | None:
        """CLIENT KILL of some connections."""
        with suppress(RedisFailure), self._redis() as redis:
            clients = sorted(int(client["id"]) for client in cast("list[dict[str, str]]", redis.client_list()))
            chosen = random.Random(action.whom).sample(clients, max(1, int(action.lasts * len(clients))))
            for client_id in chosen:
                redis.client_kill_filter(_id=str(client_id))
            return f"{len(chosen)} of {len(clients)} connections"
        return None

    def kill_redis(self, action: Action) -> str | None:
        """SIGKILL to the server, which the supervisor starts again with its AOF."""
        return self._signal([("valkey", self._stage.valkey())] if self._stage.valkey() else [], action, signal.SIGKILL)

    def fill(self, action: Action) -> str | None:
        """No more room than is used now, for some seconds."""
        lasts_s = _between(FULL_S, action)
        with suppress(RedisFailure), self._redis() as redis:
            redis.config_set("maxmemory", redis.info("memory")["used_memory"])
            self._later(lasts_s, self._empty)
            return f"Redis for {lasts_s:.1f} s"
        return None

    # --- undoing ----------------------------------------------------------------------------------------------------

    def _wake(self, name: str, pid: int, since: float) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._stage.journal.write(
            "frozen", pid=pid, at=since, until=time.time()
        )  # it may have been longer than was meant
        self._tell("woke", f"{name} ({pid})")

    def _empty(self) -> None:
        with suppress(RedisFailure), self._redis() as redis:  # a server that was killed meanwhile has no limit
            redis.config_set("maxmemory", 0)
        self._tell("emptied", "Redis")

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))
        self._undo.sort(key=lambda pair: pair[0])

    def _undo_until(self, at: float) -> None:
        while self._undo and self._undo[0][0] < at:
            due, undo = self._undo.pop(0)
            time.sleep(max(0.0, due - time.monotonic()))
            undo()
        time.sleep(max(0.0, at - time.monotonic()))

    # --- finding ----------------------------------------------------------------------------------------------------

    def _workers(self) -> list[tuple[str, int]]:
        return sorted((name, process.pid) for name, process in self._stage.workers().items())

    def _children(self) -> list[tuple[str, int]]:
        ours = [
            (f"a child of {name}", child)
            for name, pid in self._workers()
            if "tools" in name
            for child in sorted(children(pid))
        ]
        user_worker = self._stage.user_worker
        return ours + [
            ("one of the user's worker", pid) for pid in (family(user_worker.pid)[1:] if user_worker else ())
        ]

    def _redis(self) -> Redis:
        return connect(self._stage.client.redis_url)

    def _kill(self, victims: list[tuple[str, int]], action: Action) -> str | None:
        for pid in family(_choose(victims, action)[1]) if victims else []:
            self._stage.journal.write("killed", pid=pid)
        return self._signal(victims, action, signal.SIGKILL)

    def _signal(self, victims: list[tuple[str, int]], action: Action, number: signal.Signals) -> str | None:
        if not victims:
            return None
        name, pid = _choose(victims, action)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return f"{name} ({pid})"

    def _tell(self, what: str, whom: str) -> None:
        self._say(f"{time.time():.3f} {time.monotonic() - self._since:7.2f} {what} {whom}")


ACTIONS: dict[str, tuple[Callable[[Havoc, Action], str | None], int]] = {
    "kill_worker": (Havoc.kill_worker, 3),
    "kill_child": (Havoc.kill_child, 4),
    "kill_user_worker": (Havoc.kill_user_worker, 2),
    "stop_worker": (Havoc.stop_worker, 2),
    "freeze": (Havoc.freeze, 3),
    "cut": (Havoc.cut, 3),
    "kill_redis": (Havoc.kill_redis, 1),
    "fill": (Havoc.fill, 1),
}
"""What may happen, and how often of all."""


def _between(bounds: tuple[float, float], action: Action) -> float:
    return bounds[0] + action.lasts * (bounds[1] - bounds[0])


def _choose(things: Sequence[Thing], action: Action) -> Thing:
    return things[int(action.whom * len(things))]
