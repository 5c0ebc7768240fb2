"""The log of a run, read for pages: the begin and the end of its steps, and the events of one of them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from cantata.flows.events import (
    OutcomeUncertain,
    RateLimited,
    RunEvent,
    SignalAwaited,
    SleepBegan,
    StepExpanded,
    StepStarted,
    event_of,
    types_where,
)
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.ledger.scripts import SCRIPTS

EVENTS_PER_CALL = 1000  # that one call scans: some milliseconds
CALLS_AT_ONCE = 1  # Redis serves no other client until all calls of a round trip are done
MAX_EVENTS = 100_000  # of a longer log, only the newest are scanned
MAX_CACHED_RUNS, MAX_CACHED_STEPS = 32, 20_000  # whose moments are cached in this process, in all: some megabytes

KINDS = types_where(lambda event: event.ends_step or event in (StepStarted, StepExpanded))
"""Types of events that mark the begin or the end of a step."""
HOLDS = types_where(lambda event: event in (OutcomeUncertain, SignalAwaited, SleepBegan))
"""Types of events after which a step waits for an answer or a time."""
LIMITED = types_where(lambda event: event is RateLimited)
NOTED = KINDS | HOLDS | LIMITED
"""Types of events that change the moments of a step."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The begin and the end of a step, in ms, its last worker, and what held it back."""

    first_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    worker: str = ""
    asked_ms: int | None = None
    """The time at which it began to wait for an answer or a time."""
    was_limited: bool = False
    """True if a shared limit has held it back."""

    def after(self, kind: str, worker: str, at_ms: int) -> Moments:
        """Return the moments after another event of NOTED."""
        if kind in HOLDS:
            return replace(self, asked_ms=at_ms)
        if kind in LIMITED:
            return replace(self, was_limited=True)
        if kind == "started":
            return replace(self, first_ms=self.first_ms or at_ms, started_ms=at_ms, worker=worker)
        if worker:  # of an attempt whose end is its only event
            return replace(self, first_ms=self.first_ms or at_ms, started_ms=at_ms, ended_ms=at_ms, worker=worker)
        return replace(self, ended_ms=at_ms)

    @property
    def begun_ms(self) -> int | None:
        """The time at which it began: to work, or to wait for an answer or a time."""
        return self.first_ms or self.asked_ms


NEVER = Moments()


class Timeline:
    """The begin and the end of the steps of runs. The part of a run's log that was read is cached, since events are only appended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[tuple[str, frozenset[str]], tuple[int, dict[str, Moments]]] = OrderedDict()
        self._changing = threading.Lock()

    def moments(self, run_id: str, offset: int, *, folded: Mapping[str, int]) -> Mapping[str, Moments]:
        """Return the moments of steps by the events up to an offset; for maps in `folded`, of that many items only."""
        key = run_id, frozenset(prefix for prefix, shown in folded.items() if shown)
        with self._changing:
            known, before = self._kept.get(key, (0, {}))
        if known > offset:
            known, before = 0, {}
        limits = [word for prefix, shown in folded.items() for word in (f"{prefix}/", str(shown))]
        found = dict(before)
        for rows in _log(self._ledger, "runs/moments", run_id, (), known + 1, offset, limits):
            for i in range(0, len(rows), 4):
                kind, step_id, worker, at = rows[i : i + 4]
                found[step_id] = found.get(step_id, NEVER).after(kind, worker, int(at))
        if len(found) > MAX_CACHED_STEPS:
            return found
        with self._changing:
            self._kept[key] = offset, found
            self._kept.move_to_end(key)
            while (
                len(self._kept) > MAX_CACHED_RUNS
                or sum(len(each) for _, each in self._kept.values()) > MAX_CACHED_STEPS
            ):
                self._kept.popitem(last=False)
        return found


def step_events(ledger: Ledger, run_id: str, step_id: str, offset: int) -> list[RunEvent]:
    """Return the events of one step up to an offset, without the pieces of a model's reply."""
    rows = [row for chunk in _log(ledger, "runs/step_events", run_id, (step_id,), 1, offset, ()) for row in chunk]
    return [_event(run_id, step_id, row) for row in rows]


def moments_in(events: Iterable[RunEvent]) -> Moments:
    """Return when a step began and ended, by all its events."""
    found = NEVER
    for event in events:
        if event.type in NOTED:
            found = found.after(event.type, event.worker or "", event.at_ms)
    return found


def _event(run_id: str, step_id: str, row: Sequence[str]) -> RunEvent:
    seq, kind, attempt, worker, at, detail = row
    return event_of(
        json.loads(detail) if detail else None,
        seq=int(seq),
        run_id=run_id,
        at_ms=int(at),
        type=kind,
        step=step_id,
        attempt=int(attempt) if attempt else None,
        worker=worker or None,
    )


def _log(
    ledger: Ledger, name: str, run_id: str, first: Sequence[str], begin: int, end: int, rest: Iterable[str]
) -> list[list[str]]:
    """Return the replies of a script to each part of a run's log. Offsets have no gaps, so the parts are known in advance."""
    key = shard_key(ledger.redis, shard_of(run_id))
    starts = range(max(begin, end - MAX_EVENTS + 1), end + 1, EVENTS_PER_CALL)
    calls = [(key, (run_id, *first, str(start), str(min(start + EVENTS_PER_CALL - 1, end)), *rest)) for start in starts]
    return cast(
        "list[list[str]]",
        ledger.with_retries(lambda: SCRIPTS.call_each(ledger.redis, name, calls, at_once=CALLS_AT_ONCE)),
    )
