"""Snapshots of runs for pages: the states of steps, when they began and ended, their outputs, and the events of one of them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import cast

from cantata.errors import UnknownRunError
from cantata.flows.events import RunEvent, StepExpanded, StepStarted, event_of, types_where
from cantata.flows.graph import START
from cantata.flows.wire import RUN_OVER
from cantata.ledger.encoding import states_in
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import run_key, shard_key, shard_of
from cantata.ledger.redis.lua_scripts import SCRIPTS
from cantata.ledger.redis.pieces import ask_each, scan
from cantata.ledger.runs.summaries import FIELDS, RunSummary, summary_of, unescaped
from cantata.values import JsonValue

REQUEST_BYTES = 20_000  # of a request that are read
OUTPUT_BYTES = 80_000  # of one output that are read: at least 20,000 characters; a run may have a thousand outputs of a megabyte
OUTPUTS_AT_ONCE = 1  # in one round trip: one of a megabyte takes Redis 5 ms
EVENTS_PER_CALL = 1000  # that one call scans: some milliseconds
CALLS_AT_ONCE = 1  # Redis serves no other client until all calls of a round trip are done
MAX_EVENTS = 100_000  # of a longer log, only the newest are scanned
MAX_CACHED_RUNS, MAX_CACHED_STEPS = 32, 20_000  # whose moments are cached in this process, in all: some megabytes

KINDS = types_where(lambda event: event.ends_step or event in (StepStarted, StepExpanded))
"""Types of events that mark the begin or the end of a step."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The state of a step."""

    state: str
    attempt: int
    failures: int
    crashes: int
    owner: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as read at one moment."""

    run: RunSummary
    request: str
    """The request as JSON text; its beginning, if it `is_cut`."""
    is_cut: bool
    offset: int
    """The last event that it includes."""
    cells: Mapping[str, Cell]
    names: Mapping[str, str]
    terminals: tuple[str, ...]

    def answering(self, name: str) -> str:
        """Return the step that answers to a name."""
        while name in self.names:
            name = self.names[name]
        return name


@dataclass(frozen=True, slots=True)
class Moments:
    """The begin and the end of a step, in ms, and its last worker."""

    first_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    worker: str = ""

    def after(self, kind: str, worker: str, at_ms: int) -> Moments:
        """Return the moments after another event of KINDS."""
        if kind == "started":
            return Moments(self.first_ms or at_ms, at_ms, self.ended_ms, worker)
        if worker:  # of an attempt whose end is its only event
            return Moments(self.first_ms or at_ms, at_ms, at_ms, worker)
        return Moments(self.first_ms, self.started_ms, at_ms, self.worker)


NEVER = Moments()


@dataclass(frozen=True, slots=True)
class Parts:
    """The recorded details of some steps."""

    specs: Mapping[str, Mapping[str, JsonValue]]
    edges: Mapping[str, Sequence[tuple[str, str, bool]]]
    """Step → its out-edges: target, label, whether it wakes."""
    infos: Mapping[str, Mapping[str, JsonValue]]
    expansions: Mapping[str, Mapping[str, JsonValue]]


def snapshot(ledger: Ledger, run_id: str) -> Snapshot:
    """Return a snapshot of a run.

    It is read in pieces while the run may go on: each step is as it was at `offset` or later, so the events after `offset` continue from
    here. The status is the newest; an ended run is read as it ended. Raises UnknownRunError.
    """
    request, size = _request(ledger, run_id)
    key = run_key(ledger.redis, run_id)
    while True:
        offset = _last_offset(ledger, key)
        before = ledger.runs.status(run_id)
        states, names = (scan(ledger.redis, ledger.with_retries, f"{key}{part}") for part in (":state", ":names"))
        (terminals, *values), (seconds, micros) = ledger.with_retries(lambda: _fields_now(ledger, key))
        if values[FIELDS.index("status")] is None:
            raise UnknownRunError.of(run_id)
        run = summary_of(run_id, request, values, seconds + micros / 1e6)
        if run.status not in RUN_OVER or before in RUN_OVER:
            break
    return Snapshot(
        run=run,
        request=request,
        is_cut=size > REQUEST_BYTES,
        offset=offset,
        cells={step_id: _cell(packed) for step_id, packed in states_in(run.status, states).items()},
        names={name: step_id for name, step_id in names.items() if step_id in states},  # others came meanwhile
        terminals=tuple(json.loads(terminals or "[]")),
    )


def _fields_now(ledger: Ledger, key: str) -> tuple[list[str | None], tuple[int, int]]:
    with ledger.redis.pipeline(transaction=True) as pipe:
        pipe.hmget(key, ["terminals", *FIELDS])
        pipe.time()
        return cast("tuple[list[str | None], tuple[int, int]]", tuple(pipe.execute()))


def _last_offset(ledger: Ledger, key: str) -> int:
    last = cast("list[tuple[str, object]]", ledger.with_retries(lambda: ledger.redis.xrevrange(f"{key}:log", count=1)))
    return int(last[0][0].partition("-")[2]) if last else 0


def _request(ledger: Ledger, run_id: str) -> tuple[str, int]:
    key = shard_key(ledger.redis, shard_of(run_id))
    text, size = ledger.with_retries(lambda: SCRIPTS.call(ledger.redis, "runs/beginning", key, run_id, str(REQUEST_BYTES), ""))
    return str(text), int(size)


def _cell(packed: str) -> Cell:
    state, attempt, _pending, _taken, failures, crashes, _quorum, owner = packed.split(" ", 7)
    return Cell(state, int(attempt), int(failures), int(crashes), owner)


def parts(ledger: Ledger, run_id: str, step_ids: Sequence[str]) -> Parts:
    """Return the recorded details of some steps."""
    key, ids = run_key(ledger.redis, run_id), list(step_ids)
    if not ids:
        return Parts({}, {}, {}, {})

    def fetch(wanted: list[str], *kinds: str) -> list[dict[str, str]]:
        rows = ledger.with_retries(lambda: ask_each(ledger.redis, kinds, lambda pipe, kind: pipe.hmget(f"{key}:{kind}", wanted)))
        return [{name: text for name, text in zip(wanted, row, strict=True) if text is not None} for row in rows]

    specs, edges, infos, expansions = fetch(ids, "steps", "edges", "info", "expansions")
    shared = {step_id: text[1:] for step_id, text in specs.items() if text.startswith("=")}
    if shared:
        like_specs, like_edges = fetch(sorted(set(shared.values())), "steps", "edges")
        specs |= {step_id: like_specs[like] for step_id, like in shared.items()}
        edges = {step_id: like_edges[like] for step_id, like in shared.items() if like in like_edges} | edges
    return Parts(
        _decoded(specs), {step_id: _edges(json.loads(text)) for step_id, text in edges.items()}, _decoded(infos), _decoded(expansions)
    )


def plan(ledger: Ledger, run_id: str) -> list[str]:
    """Return the steps of a run's plan, without @start, each behind those that it waits for; none before the run is planned."""
    key = run_key(ledger.redis, run_id)
    states, edges, expansions = (scan(ledger.redis, ledger.with_retries, f"{key}{part}") for part in (":state", ":edges", ":expansions"))
    parents: dict[str, str] = {START: ""}
    maps: set[str] = set()
    for parent, text in expansions.items():
        expansion = json.loads(text)
        parents |= dict.fromkeys(expansion["ids"] or (), parent)
        maps |= {expansion["items"]["prefix"]} if "items" in expansion else set()
    planned = [step_id for step_id in sorted(states) if step_id not in parents and step_id.rpartition("/")[0] not in maps]
    sorter = TopologicalSorter(dict.fromkeys(planned, ()))
    for step_id, parent in parents.items():  # the out-edges of a step that expanded are those of its exit
        sorter.add(step_id, parent)
    for source, text in edges.items():
        for target, _, _ in _edges(json.loads(text)):
            sorter.add(target, source)
    known = set(planned)
    return [step_id for step_id in sorter.static_order() if step_id in known]


def _decoded(texts: Mapping[str, str]) -> dict[str, Mapping[str, JsonValue]]:
    made: dict[str, Mapping[str, JsonValue]] = {}
    for text in texts.values():
        if text not in made:
            made[text] = json.loads(text)
    return {step_id: made[text] for step_id, text in texts.items()}


def _edges(found: JsonValue) -> list[tuple[str, str, bool]]:
    """Return edges that Lua wrote: an empty list may be an object."""
    return [(str(target), str(label), bool(wakes)) for target, label, wakes, *_ in cast("list[list[JsonValue]]", found or [])]


# --- outputs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beginning:
    """An output, or its beginning."""

    value: JsonValue
    is_cut: bool = False
    """If so, the value is a text: the beginning of a text, or of the JSON of anything else."""


def beginnings(ledger: Ledger, run_id: str, step_ids: Sequence[str]) -> list[Beginning]:
    """Return the beginnings of the outputs of steps, in order; null where there is none."""
    key = shard_key(ledger.redis, shard_of(run_id))
    calls = [(key, (run_id, str(OUTPUT_BYTES), step_id)) for step_id in step_ids]
    replies = ledger.with_retries(lambda: SCRIPTS.call_each(ledger.redis, "runs/beginning", calls, at_once=OUTPUTS_AT_ONCE))
    return [_beginning(text, int(size)) for text, size in replies]


def _beginning(text: str, size: int) -> Beginning:
    if size <= OUTPUT_BYTES:
        return Beginning(json.loads(text) if text else None)
    return Beginning(unescaped(text[1:]) if text.startswith('"') else text, is_cut=True)


# --- the log ----------------------------------------------------------------------------------------------------------------


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
            while len(self._kept) > MAX_CACHED_RUNS or sum(len(each) for _, each in self._kept.values()) > MAX_CACHED_STEPS:
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
        if event.type in KINDS:
            found = found.after(event.type, event.worker or "", event.at_ms)
    return found


def given(ledger: Ledger, run_id: str, step_id: str) -> JsonValue:
    """Return the given value of a step, such as a map item."""
    text = ledger.with_retries(lambda: ledger.redis.hget(f"{run_key(ledger.redis, run_id)}:given", step_id))
    return cast(JsonValue, json.loads(text)) if text else None


def _event(run_id: str, step_id: str, row: Sequence[str]) -> RunEvent:
    seq, kind, attempt, worker, at, detail = row
    return event_of(
        json.loads(detail) if detail else None, seq=int(seq), run_id=run_id, at_ms=int(at), type=kind, step=step_id,
        attempt=int(attempt) if attempt else None, worker=worker or None,
    )  # fmt: skip


def _log(ledger: Ledger, name: str, run_id: str, first: Sequence[str], begin: int, end: int, rest: Iterable[str]) -> list[list[str]]:
    """Return the replies of a script to each part of a run's log. Offsets have no gaps, so the parts are known in advance."""
    key = shard_key(ledger.redis, shard_of(run_id))
    starts = range(max(begin, end - MAX_EVENTS + 1), end + 1, EVENTS_PER_CALL)
    calls = [(key, (run_id, *first, str(start), str(min(start + EVENTS_PER_CALL - 1, end)), *rest)) for start in starts]
    return cast("list[list[str]]", ledger.with_retries(lambda: SCRIPTS.call_each(ledger.redis, name, calls, at_once=CALLS_AT_ONCE)))
