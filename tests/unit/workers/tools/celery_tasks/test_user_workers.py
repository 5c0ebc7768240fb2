"""Which tasks count as lost with their worker: the facts that must hold together, one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from cantata_workers.tools.celery_tasks.user_workers import ASK_S, FORGET_S, FRESH, MISSED, UserWorkers

INTERVAL_S = 2.0
SILENT_S = MISSED * INTERVAL_S + 1
TASK = "cantata-run-1-a"


class Once(threading.Event):
    """Lets a loop go round once."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = iter([False, True])

    def wait(self, timeout: float | None = None) -> bool:
        """Tell whether the loop ends."""
        return next(self._answers)


class Fleet:
    """Workers of a user as our process sees them: it stands for Celery's remote control and for the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pools: dict[str, dict[str, Any]] = {}
        self.active: dict[str, list[object]] = {}
        self.known: dict[str, Any] = {}
        """What workers reply to `query_task`; others do not reply."""
        self.asked: list[str] = []
        self.control = self
        self.workers = UserWorkers(cast(Any, self), "cantata-", lambda: False, clock=lambda: self.now_s)

    def broadcast(
        self, command: str, *, arguments: Mapping[str, Any], destination: Sequence[str] | None, **options: Any
    ) -> list[dict[str, Any]]:
        """Reply as workers do."""
        self.asked.append(command)
        replies: Any = {"stats": self.pools, "active": self.active, "query_task": self.known}[command]
        return [{name: reply} for name, reply in replies.items() if destination is None or name in destination]

    def beat(self, name: str = "a", pid: int = 1, type_: str = "worker-heartbeat") -> None:
        """Have a worker send an event."""
        self.workers.heard({"type": type_, "hostname": name, "pid": pid, "freq": INTERVAL_S})

    def ask(self) -> None:
        """Ask them once."""

        self.workers.keep_asking()
        self.workers.ask(Once())

    def executes(self, *tasks: object, name: str = "a", pid: int = 1, pool: Mapping[str, Any] | None = None) -> None:
        """Have a worker say what it executes."""
        self.beat(name, pid)
        self.pools[name] = {"pid": pid, "pool": {"writes": {}} if pool is None else pool}
        self.active[name] = list(tasks)
        self.ask()
        self.pools, self.active = {}, {}


def task(task_id: str = TASK, *, acknowledged: bool = True) -> dict[str, Any]:
    """A task as a worker lists it."""
    return {"id": task_id, "acknowledged": acknowledged, "name": "shop.pay"}


@pytest.fixture
def fleet() -> Fleet:
    """No worker yet."""
    return Fleet()


def test_a_task_of_a_silent_worker_that_nobody_knows_is_lost_and_no_other(fleet: Fleet) -> None:
    fleet.executes(task(), task("shop-1"))
    fleet.now_s += SILENT_S
    fleet.known = {"b": {}}

    assert fleet.workers.lost([TASK, "cantata-run-1-b", "shop-1"]) == {TASK: "a"}


def test_a_worker_that_is_heard_is_not_asked(fleet: Fleet) -> None:
    fleet.executes(task())
    fleet.now_s += SILENT_S - 2
    fleet.asked.clear()

    assert fleet.workers.lost([TASK]) == {}
    assert fleet.asked == []


@pytest.mark.parametrize(
    "known",
    [{"a": {}}, {"b": {TASK: ["active", {}]}}, {"b": {TASK: ["reserved", {}]}}, {"b": {"error": "no such command"}}, {"b": []}],
    ids=["its worker lives", "it is executed elsewhere", "it waits elsewhere", "an error", "no mapping"],
)  # fmt: skip
def test_a_reply_may_save_a_task(fleet: Fleet, known: dict[str, Any]) -> None:
    fleet.executes(task())
    fleet.now_s += SILENT_S
    fleet.known = known

    assert fleet.workers.lost([TASK]) == {}


@pytest.mark.parametrize(
    "arrange",
    [
        lambda fleet: fleet.executes(task(), pool={"max-concurrency": 1}),
        lambda fleet: fleet.executes(task(acknowledged=False)),
        lambda fleet: fleet.executes(task()) or fleet.executes(),
        lambda fleet: fleet.executes("nonsense", {"id": 3, "acknowledged": True}, {"id": TASK}),
        lambda fleet: fleet.beat(),
        lambda fleet: None,
    ],
    ids=["solo", "not acknowledged", "ended", "nonsense", "it never replied", "it was never heard"],
)
def test_without_the_word_of_a_prefork_worker_no_task_is_lost(fleet: Fleet, arrange: Callable[[Fleet], object]) -> None:
    arrange(fleet)
    fleet.now_s += SILENT_S

    assert fleet.workers.lost([TASK]) == {}


@pytest.mark.parametrize("pid", [1, 2], ids=["a container: the same pid", "another pid"])
def test_tasks_of_a_process_that_was_replaced_under_its_name_are_lost(fleet: Fleet, pid: int) -> None:
    fleet.executes(task())
    fleet.beat(pid=pid, type_="worker-online")
    fleet.now_s += SILENT_S - 2
    assert fleet.workers.lost([TASK]) == {}, "the heartbeats of the first have not been missed yet"
    fleet.now_s += 4
    fleet.beat(pid=pid)
    fleet.known = {"a": {}}

    assert fleet.workers.lost([TASK]) == {TASK: "a"}
    fleet.known = {"a": {TASK: ["active", {}]}}
    assert fleet.workers.lost([TASK]) == {}, "it was its own connection that was new"
    fleet.known, fleet.asked = {"a": {}}, []
    assert fleet.workers.lost([TASK]) == {}, "and from then on nobody is asked"
    assert fleet.asked == []


def test_of_two_processes_with_one_name_nothing_is_said(fleet: Fleet) -> None:
    fleet.executes(task())
    fleet.beat(pid=2)
    fleet.beat(pid=1)
    fleet.now_s += SILENT_S

    assert fleet.workers.lost([TASK]) == {}
    fleet.executes(task(), pid=2)
    fleet.now_s += SILENT_S
    assert fleet.workers.lost([TASK]) == {}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "worker-heartbeat"},
        {"type": 3, "hostname": "a", "pid": 1},
        {"type": "task-sent", "hostname": "a", "pid": 1},
        {"type": "worker-online", "hostname": [], "pid": 1},
    ],
)
def test_what_is_no_heartbeat_is_ignored(fleet: Fleet, event: dict[str, Any]) -> None:
    fleet.workers._receive([event, 7, None], None)
    fleet.ask()

    assert fleet.asked == []


def test_a_worker_that_was_silent_for_long_is_forgotten(fleet: Fleet) -> None:
    fleet.executes(task())
    fleet.now_s += FORGET_S + 1
    fleet.beat("b")
    fleet.ask()

    assert fleet.workers.lost([TASK]) == {}


def test_a_worker_that_said_that_it_ends_is_not_missed(fleet: Fleet) -> None:
    fleet.executes(task())
    fleet.beat(type_="worker-offline")
    fleet.now_s += SILENT_S

    assert fleet.workers.lost([TASK]) == {}, "its last tasks run on"


def test_what_a_worker_said_long_before_its_last_heartbeat_tells_nothing(fleet: Fleet) -> None:
    fleet.executes(task())
    fleet.now_s += FRESH * ASK_S + 1
    fleet.beat()
    fleet.now_s += SILENT_S

    assert fleet.workers.lost([TASK]) == {}, "the task may have gone elsewhere"


def test_a_name_is_its_own_again_when_the_other_process_has_ended(fleet: Fleet) -> None:
    fleet.beat()
    fleet.beat(pid=2, type_="worker-online")
    fleet.beat(pid=1)
    fleet.beat(pid=1, type_="worker-offline")
    fleet.executes(task(), pid=2)
    fleet.now_s += SILENT_S

    assert fleet.workers.lost([TASK]) == {TASK: "a"}


def test_nobody_is_asked_while_no_task_is_under_way(fleet: Fleet) -> None:
    fleet.executes(task())
    fleet.now_s += 1000 * ASK_S
    fleet.beat()
    fleet.asked.clear()

    fleet.workers.ask(Once())

    assert fleet.asked == []
