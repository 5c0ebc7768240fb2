"""Staging of forks: the parts that a fork takes over are copied in pieces, so that no call occupies Redis for long.

The stage is not yet a run and expires after ten minutes. One call (`fork.lua`) makes it a run; its time depends on the first steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from secrets import token_hex

from cantata.errors import CantataError
from cantata.flows.forks import Fork, RestartedStep
from cantata.flows.graph import START
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import LARGE_PIECE
from cantata.values import JsonValue

COPIED = {
    ":steps": 200,
    ":edges": 200,
    ":names": 200,
    ":expansions": 200,
    ":info": 200,
    ":state": 200,
    ":given": LARGE_PIECE,
    ":out": LARGE_PIECE,
}
"""The parts that a fork takes over, and how many fields of each at a time."""
HASHES = (*COPIED, ":blobs", ":joins", ":window", ":logged")
PIECE = 200
BLOBS_PIECE = 10


class Stage:
    """The stage of one fork, of this call alone."""

    def __init__(self, ledger: Ledger, run_id: str, fork: Fork, author: Mapping[str, JsonValue] | None = None) -> None:
        self._ledger = ledger
        self._author = author or {}
        self._run_id = run_id
        self._fork = fork
        self.place = f"{run_id}:fork:{token_hex(4)}"
        waiting = {item for _, _, items in _backlogs(fork) for item in items}
        free = [
            restarted
            for restarted in fork.restarted
            if restarted.step_id not in waiting and (restarted.pending == 0 or restarted.is_quorum_met)
        ]
        self._waiting = waiting
        self.sent = [restarted.step_id for restarted in free if _is_plain(restarted)]
        """Steps that may be sent as soon as the run is created."""
        self._ready = [restarted.step_id for restarted in free if not _is_plain(restarted)]

    def lay_out(self, given: str) -> dict[str, JsonValue]:
        """Stage all parts, with the first step's output `given` (JSON text); return them as `fork.lua` takes them. Raises CantataError."""
        fork = self._fork
        self._call("begin", to_json(dict(self._author)), *HASHES)
        for part, count in COPIED.items():
            self._walk("copy", part, count)
        self._take_back()
        self._put(":state", self._states())
        self._put(":edges", {step_id: to_json([list(edge) for edge in edges]) for step_id, edges in fork.edges.items()})
        self._put(":names", {name: meant for name, meant in fork.names.items() if meant is not False})
        self._put(
            ":joins",
            {
                restarted.step_id: to_json(restarted.joins)
                for restarted in fork.restarted
                if restarted.joins is not None
            },
        )
        if all(restarted.step_id != START for restarted in fork.restarted):
            self._put(":out", {START: given})
        self._walk("blobs", ":blobs", BLOBS_PIECE)
        self._walk("ends", ":log", PIECE)
        backlogs = list(self._push_backlogs())
        return {
            "parts": [*HASHES, ":log", *backlogs],
            "failures": self._walk("unlogged", ":state", PIECE),
            "left": fork.left,
            "count": fork.count,
            "terminals": fork.terminals,
            "sent": [*self.sent],
            "ready": [*self._ready],
            "deadlines": [
                [restarted.step_id, restarted.deadline_s]
                for restarted in fork.restarted
                if restarted.deadline_s is not None
            ],
        }

    def clear(self) -> None:
        """Delete the stage."""
        key = f"{run_key(self._ledger.redis, self._run_id)}{self.place.removeprefix(self._run_id)}"
        parts = (*HASHES, ":log", *(f":backlog:{parent}" for parent in self._fork.windows))
        self._ledger.with_retries(lambda: self._ledger.redis.unlink(*(f"{key}{part}" for part in parts)))

    def _take_back(self) -> None:
        fork, restarted = self._fork, [restarted.step_id for restarted in self._fork.restarted]
        for part in (":steps", ":edges", ":given", ":state", ":out", ":info"):
            self._drop(part, (*fork.removed, *fork.forgotten))
        for part in (":out", ":info"):
            self._drop(part, restarted)
        self._drop(":expansions", fork.expand_again)
        self._drop(":names", [name for name, meant in fork.names.items() if meant is False])

    def _states(self) -> dict[str, str]:
        """Return the initial states of the steps that run again."""
        sent, since = set(self.sent), f"{int(clock.synchronize(self._ledger.redis) * 1000)}"
        return {
            each.step_id: f"sent 0 {each.pending} {each.taken} 0 0 {each.quorum} {since}"
            if each.step_id in sent
            else f"{'ready' if each.step_id in self._waiting else 'waiting'} 0 {each.pending} {each.taken} 0 0 {each.quorum} -"
            for each in self._fork.restarted
        }

    def _push_backlogs(self) -> Iterator[str]:
        for parent, window, items in _backlogs(self._fork):
            self._put(":window", {parent: window})
            for start in range(0, len(items), PIECE):
                self._call("push", f":backlog:{parent}", str(start), *items[start : start + PIECE])
            if items:
                yield f":backlog:{parent}"

    def _put(self, part: str, fields: Mapping[str, str]) -> None:
        flat = [word for pair in fields.items() for word in pair]
        for start in range(0, len(flat), 2 * PIECE):
            self._call("put", part, *flat[start : start + 2 * PIECE])

    def _drop(self, part: str, fields: Iterable[str]) -> None:
        names, piece = list(fields), COPIED[part]  # what is dropped is read, to be counted
        for start in range(0, len(names), piece):
            self._call("drop", part, *names[start : start + piece])

    def _walk(self, what: str, part: str, count: int) -> int:
        """Process one piece after the other; return the number of failures."""
        at, failures = "0", 0
        while True:
            at, found = self._call(what, part, at, str(count))
            failures += found
            if at == "0":
                return failures

    def _call(self, *words: str) -> tuple[str, int]:
        word, *answer = self._ledger.caller.call("forks/stage", self._run_id, self._fork.source, self.place, *words)
        if word == "lost":
            raise CantataError(LOST.format(source=self._fork.source))
        return str(answer[0]), int(answer[1])


LOST = "what was copied of run {source!r} is gone: Redis evicted it, or it took over 10 minutes; fork the run again"


def _is_plain(restarted: RestartedStep) -> bool:
    """Return whether a message alone is enough for the step to begin."""
    return (
        restarted.pending == 0
        and restarted.taken > 0
        and not (restarted.waits or restarted.is_quorum_met or restarted.deadline_s)
    )


def _backlogs(fork: Fork) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield for each map that goes on: its parent, its window, and the items that are not sent yet."""
    for parent, window in fork.windows.items():
        free = max(0, min(window.size - window.busy, len(window.items)))
        yield parent, f"{window.size} {window.busy + free}", window.items[free:]
