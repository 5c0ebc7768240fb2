"""The workers of the user's application: which of them are alive, and which of our tasks they execute.

A task whose worker is gone looks like one that takes its time. It is called lost only if all of this holds:

- Its worker said a moment before its last heartbeat that it executes the task, and had acknowledged the message. A broker delivers any
  other message again by itself.
- That worker has a prefork pool. Its main process executes no task, so it is not silent because one keeps it busy, as with solo or gevent.
- It did not say that it ends. One that does so sends no heartbeats while its last tasks run.
- No heartbeat of that process came for `MISSED` intervals and `SILENT_S` at least, though events could be received all the while.
- No worker that replies knows the task. If the main process lives, it replies, even where its events are lost.

So a task is never called lost where workers send no heartbeats, refuse remote control, or use a broker without either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from cantata.engine.isolation import log_once

MISSED, SILENT_S = 15, 30.0  # heartbeats in a row, and how long at least: workers send one every 2 s
USUAL_INTERVAL_S, MAX_INTERVAL_S = 2.0, 3600.0  # between two heartbeats
ASK_S = 5.0  # between two questions to all workers
REPLIES_PER_S = 10  # of workers, at most: of more than 50 each is asked less often
FRESH = 3  # intervals of questions: a list of tasks that was older at the last heartbeat tells nothing
REPLY_S = 2.0  # for which a question waits; a prefork worker replies within milliseconds
CHECKED_S = 150.0  # for which workers are asked after `keep_asking`: the sweep looks at a task at least once a minute
FORGET_S = 3600.0  # after which a silent worker is forgotten
MAX_LEFT = 10_000  # tasks of processes that were replaced

Clock = Callable[[], float]


@dataclass(slots=True)
class _Worker:
    """The process that has a worker's name at present."""

    pid: int
    heard_at: float
    interval_s: float
    is_prefork: bool | None = None
    """None: it has not replied yet."""
    tasks: frozenset[str] = frozenset()
    """Ids of our tasks that it executes, and whose messages it has acknowledged."""
    listed_at: float = 0.0
    """When it listed them."""
    former: set[int] = field(default_factory=set)
    """Processes that had the name before."""

    @property
    def silent_from(self) -> float:
        """The time from which its process may be gone, if nothing is heard of it."""
        return self.heard_at + max(MISSED * self.interval_s, SILENT_S)


@dataclass(frozen=True, slots=True)
class _Left:
    """A task of a process that was replaced."""

    name: str
    until: float
    """Its heartbeats are missed from then on."""


class UserWorkers:
    """Listens to the heartbeats of the user's workers, and asks which of our tasks they execute."""

    def __init__(
        self, app: Celery, prefix: str, is_needed: Callable[[], bool], *, clock: Clock = time.monotonic
    ) -> None:
        """Create it; ids of our tasks begin with `prefix`, and workers are asked while `is_needed`, or after `keep_asking`."""
        self._app = app
        self._prefix = prefix
        self._is_needed = is_needed
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._left: dict[str, _Left] = {}
        self._shared: set[str] = set()
        """Names that several processes have at once: nothing can be said of them."""
        self._checked_at = -CHECKED_S

    # --- heartbeats -------------------------------------------------------------------------------------------------

    def listen(self, ended: threading.Event) -> None:
        """Receive heartbeats until `ended` is set. What was known before is forgotten, since workers may have come and gone meanwhile."""
        with self._lock:
            self._workers.clear()
            self._left.clear()
            self._shared.clear()
        with self._app.connection_for_read() as connection:
            if "fanout" not in connection.transport.implements.exchange_type:  # such as SQS: its workers send no events
                ended.wait()
                return
            queue = self._app.events.Receiver(connection, routing_key="worker.#").queue
            with connection.Consumer(
                [queue], callbacks=[self._receive], on_decode_error=_unreadable, no_ack=True, accept=["json"]
            ):
                self._app.control.broadcast("heartbeat")  # so that all are known at once
                while not ended.is_set():
                    try:
                        connection.drain_events(timeout=1.0)
                    except TimeoutError:
                        connection.heartbeat_check()

    def _receive(self, body: Any, _: Any) -> None:
        """Note the events of a message. One that nobody can read is in the way of no other."""
        for event in body if isinstance(body, list) else [body]:
            try:
                self.heard(event)
            except Exception as error:  # noqa: BLE001  # anyone may send anything
                log_once("worker_event_unreadable", error)

    def heard(self, event: Mapping[str, Any]) -> None:
        """Note a worker's event."""
        name, pid, type_, now = event.get("hostname"), event.get("pid"), str(event.get("type")), self._clock()
        if not isinstance(name, str) or not isinstance(pid, int) or not type_.startswith("worker-"):
            return
        freq = event.get("freq")
        is_known = isinstance(freq, int | float) and 0 < freq < MAX_INTERVAL_S
        interval_s = float(freq) if is_known else USUAL_INTERVAL_S  # type: ignore[arg-type]  # a number, as was asked
        with self._lock:
            worker = self._workers.get(name)
            if type_ == "worker-offline":
                self._end(name, pid)
            elif worker is None:
                self._workers[name] = _Worker(pid, now, interval_s)
            elif pid in worker.former:
                self._shared.add(name)
                self._left = {task_id: left for task_id, left in self._left.items() if left.name != name}
            elif pid != worker.pid or type_ == "worker-online":
                self._keep_tasks(name, worker)
                former = {*worker.former, worker.pid} - {pid}
                self._workers[name] = _Worker(pid, now, interval_s, former=former)
            else:
                worker.heard_at, worker.interval_s = now, interval_s

    def _end(self, name: str, pid: int) -> None:
        """Forget a process that says that it ends: its last tasks run on, and it sends no heartbeats."""
        worker = self._workers.get(name)
        if worker is not None and worker.pid == pid:
            del self._workers[name]
        elif worker is not None:
            worker.former.discard(pid)
            if not worker.former:
                self._shared.discard(name)

    def _keep_tasks(self, name: str, worker: _Worker) -> None:
        """Keep the tasks of a process that another one replaces."""
        if self._is_known(name, worker):
            self._left |= dict.fromkeys(worker.tasks, _Left(name, worker.silent_from))
        for task_id in list(self._left)[: max(0, len(self._left) - MAX_LEFT)]:
            del self._left[task_id]

    def _is_known(self, name: str, worker: _Worker) -> bool:
        """Return whether it is known what a process executed when it was last heard."""
        is_fresh = worker.heard_at - worker.listed_at < FRESH * self._interval_s
        return bool(worker.is_prefork) and is_fresh and name not in self._shared

    # --- questions --------------------------------------------------------------------------------------------------

    def ask(self, ended: threading.Event) -> None:
        """Ask workers, every few seconds until `ended` is set, for their pool and for the tasks that they execute."""
        while not ended.wait(self._interval_s):
            self._forget_old()
            if self._is_needed() or self._clock() - self._checked_at < CHECKED_S:
                self._ask_for_pools()
                self._ask_for_tasks()

    def keep_asking(self) -> None:
        """Have workers asked for the next minutes, though none of our tasks is known to be under way."""
        self._checked_at = self._clock()

    @property
    def _interval_s(self) -> float:
        return max(ASK_S, len(self._workers) / REPLIES_PER_S)

    def _forget_old(self) -> None:
        with self._lock:
            for name in [name for name, each in self._workers.items() if self._clock() - each.heard_at > FORGET_S]:
                del self._workers[name]

    def _names(self, *, is_prefork: bool | None) -> list[str]:
        return [name for name, worker in self._heard() if worker.is_prefork is is_prefork and name not in self._shared]

    def _heard(self) -> list[tuple[str, _Worker]]:
        """Return the workers that are not silent."""
        now = self._clock()
        with self._lock:
            return [(name, worker) for name, worker in self._workers.items() if now <= worker.silent_from]

    def _ask_for_pools(self) -> None:
        for name, stats in self._replies("stats", self._names(is_prefork=None)):
            pool = stats.get("pool") if isinstance(stats, Mapping) else None
            with self._lock:
                if isinstance(pool, Mapping) and (worker := self._workers.get(name)) and worker.pid == stats.get("pid"):
                    worker.is_prefork = "writes" in pool  # to the pipes of its children: no other pool of Celery has it

    def _ask_for_tasks(self) -> None:
        for name, active in self._replies("active", self._names(is_prefork=True), {"safe": True}):
            with self._lock:
                if isinstance(active, list) and (worker := self._workers.get(name)):
                    worker.tasks, worker.listed_at = frozenset(self._executed(active)), self._clock()
                    self._live(worker.tasks)

    def _executed(self, active: list[Any]) -> Iterator[str]:
        for each in active:
            if isinstance(each, Mapping) and each.get("acknowledged") is True:
                task_id = each.get("id")
                if isinstance(task_id, str) and task_id.startswith(self._prefix):
                    yield task_id

    def _live(self, task_ids: Collection[str]) -> None:
        """Note tasks that some worker knows: they left no process that is gone."""
        for task_id in task_ids:
            self._left.pop(task_id, None)

    def _replies(
        self, command: str, names: list[str] | None, arguments: Mapping[str, Any] | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Ask the workers of these names, all if None, and return the name and the answer of each that replies."""
        if names == []:
            return
        limit = most if names is None else len(names)
        replies = self._app.control.broadcast(
            command, arguments=dict(arguments or {}), destination=names, reply=True, timeout=REPLY_S, limit=limit
        )
        for reply in replies or ():
            yield from reply.items()

    # --- lost tasks -------------------------------------------------------------------------------------------------

    def lost(self, task_ids: Collection[str]) -> dict[str, str]:
        """Return those of our tasks that ended with the process of their worker, each with that worker's name.

        Raises whatever the user's broker raises while it is away.
        """
        suspects = self._suspects(task_ids)
        if not suspects:
            return {}
        silent = {name for name, is_replaced in suspects.values() if not is_replaced}
        heard = len(self._heard())
        for name, found in self._replies("query_task", None, {"ids": list(suspects)}, most=heard + len(silent)):
            is_answer = isinstance(found, Mapping) and "error" not in found
            known = set(found) if is_answer else set(suspects)  # a worker that cannot tell may have any of them
            replied = {task_id for task_id, (worker, _) in suspects.items() if worker == name and name in silent}
            for task_id in suspects.keys() & (known | replied):  # its worker lives: the task ended, or was sent again
                del suspects[task_id]
            with self._lock:
                self._live(known if is_answer else ())
        return {task_id: name for task_id, (name, _) in suspects.items()}

    def _suspects(self, task_ids: Collection[str]) -> dict[str, tuple[str, bool]]:
        """Return the tasks whose workers are silent, each with that worker's name and whether another process has taken its name."""
        now = self._clock()
        with self._lock:
            silent = {
                task_id: (name, False)
                for name, worker in self._workers.items()
                if now > worker.silent_from and self._is_known(name, worker)
                for task_id in worker.tasks
            }
            left = {task_id: (left.name, True) for task_id, left in self._left.items() if now > left.until}
        found = {**left, **silent}
        return {task_id: found[task_id] for task_id in task_ids if task_id in found}


def _unreadable(_: Any, error: Exception) -> None:
    log_once("worker_event_unreadable", error)
