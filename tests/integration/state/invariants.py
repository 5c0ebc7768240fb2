"""What holds of every run in Redis at any time, whatever was done to it (DESIGN §2 and §3)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from redis import Redis

from cantata.flows.graph import START, STEP_OVER
from cantata.flows.wire import RUN_OVER
from cantata.ledger.encoding import shown_status
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS, definitions_key, run_key, shard_key, shard_of

ENDINGS = {"done", "failed", "skipped", "expanded", "missed_deadline"}
"""The events that end a step."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a run keeps of a step's progress."""

    word: str
    attempt: int
    pending: int
    failures: int
    owner: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.word in STEP_OVER


@dataclass(frozen=True, slots=True)
class Picture:
    """A run as it lies in Redis, and what its shard holds of it."""

    run_id: str
    meta: Mapping[str, str]
    cells: Mapping[str, Cell]
    specs: Mapping[str, str]
    edges: Mapping[str, str]
    outs: Mapping[str, str]
    infos: Mapping[str, str]
    joins: Mapping[str, str]
    windows: Mapping[str, str]
    log: tuple[tuple[str, Mapping[str, str]], ...]
    leases: frozenset[str]
    ready: frozenset[str]
    due: frozenset[str]
    tasks: frozenset[str]
    asking: frozenset[str]
    is_cleared: bool
    """Whether what its open steps waited for is forgotten, if it is over."""

    @property
    def status(self) -> str:
        """How the run stands."""
        return self.meta["status"]

    def spec(self, step_id: str) -> dict[str, object]:
        """What a step is to do, also if it shares that with others."""
        text = self.specs[step_id]
        return cast("dict[str, object]", json.loads(self.specs[text[1:]] if text.startswith("=") else text))

    def edges_of(self, step_id: str) -> list[list[object]]:
        """A step's out-edges, also if it shares them with others."""
        text = self.edges.get(step_id)
        if text is None and self.specs[step_id].startswith("="):
            text = self.edges.get(self.specs[step_id][1:])
        return list(json.loads(text)) if text else []  # an empty list may lie there as {}


def take(redis: Redis, run_id: str) -> Picture:
    """Picture a run."""
    key, shard = run_key(None, run_id), shard_key(None, shard_of(run_id))
    with redis.pipeline(transaction=True) as pipe:
        for part in ("", ":state", ":steps", ":edges", ":out", ":info", ":joins", ":window"):
            pipe.hgetall(key + part)
        pipe.xrange(f"{key}:log")
        for name in ("leases", "ready", "due", "tasks", "asking"):
            pipe.zrange(f"{shard}:{name}", 0, -1)
        pipe.hexists(f"{shard}:clearing", run_id)
        meta, packed, specs, edges, outs, infos, joins, windows, log, leases, ready, due, tasks, asking, is_clearing = (
            pipe.execute()
        )
    return Picture(
        run_id=run_id,
        meta=meta,
        cells={step_id: _cell(text, meta["status"]) for step_id, text in packed.items()},
        specs=specs,
        edges=edges,
        outs=outs,
        infos=infos,
        joins=joins,
        windows=windows,
        log=tuple(log),
        leases=frozenset(name for name in leases if name.split("|")[0] == run_id),
        ready=frozenset(name for name in ready if name.split("|")[0] == run_id),
        due=frozenset(name for name in due if name.split("|")[1] == run_id),
        tasks=frozenset(name for name in tasks if name.split("|")[0] == run_id),
        asking=frozenset(name for name in asking if name.split("|")[0] == run_id),
        is_cleared=not is_clearing,
    )


def _cell(packed: str, status: str) -> Cell:
    word, attempt, pending, _taken, failures, _crashes, _quorum, owner = packed.split(" ", 7)
    if status in RUN_OVER and word not in STEP_OVER:
        return Cell("skipped", int(attempt), int(pending), int(failures), "-")
    if word in ("sent", "dispatched"):
        assert owner.isdecimal(), f"a {word} step knows since when"
        owner = "-"
    if word in STEP_OVER and owner.startswith(">"):  # the step that its commit began
        owner = "-"
    return Cell(word, int(attempt), int(pending), int(failures), owner)


def check_all(redis: Redis) -> None:
    """Check every run that Redis knows."""
    for shard in range(SHARDS):
        held: Counter[str] = Counter()
        for run_id in cast("list[str]", redis.zrange(f"{shard_key(None, shard)}:runs", 0, -1)):
            run = take(redis, run_id)
            if not run.meta:  # it has expired meanwhile
                continue
            check(run)
            check_keys(redis, run_id)
            planned = Ledger(redis).reader.planned(run_id)  # raises an error for edges in a circle
            assert len(planned) == len(set(planned))
            assert set(planned) <= run.cells.keys()
            held[run.meta["definitions"]] += run.status not in RUN_OVER or "held" in run.meta  # by the outbox
        for schedule in cast("list[str]", redis.zrange(f"{shard_key(None, shard)}:schedules", 0, -1)):
            held[str(redis.hget(f"{shard_key(None, shard)}:schedule:{schedule}", "definitions"))] += 1
        _check_definitions(redis, shard, held)


def _check_definitions(redis: Redis, shard: int, held: Mapping[str, int]) -> None:
    """Definitions stay while an open run needs them, and expire when none does."""
    for digest, runs in held.items():
        key = definitions_key(None, shard, digest)
        assert int(redis.hget(key, "runs") or 0) == runs, "definitions know how many open runs and schedules hold them"
        assert (redis.pttl(key) == -1) == (runs > 0), (
            "definitions expire if and only if no open run or schedule holds them"
        )


def check(run: Picture) -> None:
    """Check a run; raises AssertionError."""
    if run.is_cleared:
        _check_places(run)
    _check_log(run)
    if run.status not in RUN_OVER:
        left = sum(not cell.is_over for cell in run.cells.values())
        assert int(run.meta["left"]) == left, "`left` counts the steps that are not over"
        assert left > 0, "a run with nothing left is closed"
        _check_edges(run)
        _check_windows(run)
        _check_clock(run)
    assert int(run.meta["count"]) == len(run.cells)


def _check_places(run: Picture) -> None:
    """A step stands exactly where its state says: in leases, in ready, in tasks, in due."""
    leases = {f"{run.run_id}|{cell.attempt}|{cell.owner}|{step}" for step, cell in _cells(run, "running")}
    assert run.leases == leases, "a step runs if and only if it is leased"
    assert run.ready == {f"{run.run_id}|{step}" for step, _ in _cells(run, "sent")}, (
        "a step is sent if and only if it will be sent again"
    )
    tasks = {f"{run.run_id}|{cell.attempt}|{step}" for step, cell in _cells(run, "dispatched")}
    assert run.tasks == tasks, "a step is dispatched if and only if the result of its task will be looked for"
    due = set() if run.status in RUN_OVER or _stands_still(run) else {f"deadline|{run.run_id}|"}
    for step, cell in _cells(run, "waiting"):
        if cell.attempt:
            permit = f"permit|{run.run_id}|{step}"
            due.add(permit if permit in run.due else f"retry|{run.run_id}|{step}")
        elif "deadline_s" in run.spec(step):
            due.add(f"join|{run.run_id}|{step}")
    asked = _asked(run)
    due |= {f"wait|{run.run_id}|{step}" for step, _ in _cells(run, "waiting_signal") if "timeout_s" in run.spec(step)}
    due |= {f"{timer}|{run.run_id}|{step}" for step, info, options in asked for timer in _open_timers(info, options)}
    assert run.due == due, "each timer has a step that waits for it, and the other way round"
    assert run.asking == {f"{run.run_id}|{step}" for step, _, _ in asked}, (
        "the inbox has exactly the steps that wait for a person"
    )
    assert all(cell.owner == "-" for cell in run.cells.values() if cell.word != "running"), (
        "only a running step has an owner"
    )


def _asked(run: Picture) -> list[tuple[str, dict[str, object], dict[str, object]]]:
    """The steps that wait for a person: with what is known of each wait, and its options."""
    found = []
    for step, _ in _cells(run, "waiting_signal"):
        params = cast("dict[str, dict[str, object]]", run.spec(step).get("params", {}))
        if not params.get("sleeps"):
            found.append(
                (step, cast("dict[str, object]", json.loads(run.infos.get(step, "{}"))), params.get("wait", {}))
            )
    return found


def _open_timers(info: Mapping[str, object], options: Mapping[str, object]) -> Iterable[str]:
    for timer, done in (("remind", "reminded_at_ms"), ("escalate", "escalated_at_ms")):
        if f"{timer}_after_s" in options and done not in info:
            yield timer


def _working(run: Picture) -> int:
    return sum(
        cell.word in ("sent", "running", "dispatched") or (cell.word == "waiting" and cell.attempt > 0)
        for cell in run.cells.values()
    )


def _stands_still(run: Picture) -> bool:
    """Whether the time of a run does not pass: it waits for a person and nothing else, or for its turn, and is not cancelled."""
    return _working(run) == 0 and "cancelling" not in run.meta


def _check_clock(run: Picture) -> None:
    """The steps that work and those that wait for a person are counted, and the clock goes by that."""
    assert int(run.meta.get("working", 0)) == _working(run), "`working` counts the steps under way"
    assert int(run.meta.get("asking", 0)) == len(list(_cells(run, "waiting_signal"))), (
        "`asking` counts the steps that wait for a person"
    )
    assert int(run.meta.get("waits", 0)) == len(_asked(run)), (
        "`waits` counts those that wait for a person, and not sleeps"
    )
    is_waiting = run.status == "running" and "cancelling" not in run.meta and bool(_asked(run)) and _working(run) == 0
    assert (shown_status(run.meta) == "waiting") == is_waiting, "a run waits if only people can go on with it"
    assert ("time_left" in run.meta) == _stands_still(run), (
        "a clock stands still while nothing but a person is waited for"
    )


def _check_log(run: Picture) -> None:
    """Events have no gap; each attempt started once, each step ended once."""
    assert [entry for entry, _ in run.log] == [f"0-{n}" for n in range(1, len(run.log) + 1)]
    assert run.log[0][1]["t"] == "accepted"
    begins = [
        event for _, event in run.log if event["t"] == "started" or (event["t"] in ENDINGS and event["w"])
    ]  # or all in one event
    started = [(event["s"], int(event["a"])) for event in begins]
    assert sorted(started) == sorted((step, n) for step, cell in run.cells.items() for n in range(1, cell.attempt + 1))
    ended = Counter(event["s"] for _, event in run.log if event["t"] in ENDINGS)
    assert max(ended.values(), default=1) == 1, "a step ends once"
    over = {step for step, cell in run.cells.items() if cell.is_over}
    told = {step for step, cell in run.cells.items() if cell.is_over and cell.word != "skipped"}
    complete = run.status not in RUN_OVER or run.status == "succeeded"
    assert ended.keys() == over if complete else told <= ended.keys() <= over, (
        "what ended is told; what the end of a run skipped is not"
    )
    closed = [n for n, (_, event) in enumerate(run.log) if event["t"] == "closed"]
    assert closed == ([len(run.log) - 1] if run.status in RUN_OVER else []), "a run closes once, and nothing follows"


def _check_edges(run: Picture) -> None:
    """Each step that waits for in-edges waits for exactly those whose source is not over."""
    pending = Counter(
        cast(str, edge[0]) for step, cell in run.cells.items() if not cell.is_over for edge in run.edges_of(step)
    )
    for step, cell in _cells(run, "waiting"):
        assert cell.pending == (0 if cell.attempt else pending[step]), (
            f"{step} counts the in-edges that are not resolved"
        )
        waits_its_turn = step == START and run.meta["status"] == "accepted" and "session" in run.meta
        assert cell.pending > 0 or cell.attempt > 0 or waits_its_turn, f"{step} waits for something"


def _check_windows(run: Picture) -> None:
    """No more of a map's items are on the way than its window holds."""
    for parent, packed in run.windows.items():
        size, inflight = map(int, packed.split())
        members = [cell.word for step, cell in run.cells.items() if run.spec(step).get("window") == parent]
        on_the_way = sum(word not in STEP_OVER and word != "ready" for word in members)
        assert on_the_way <= size, f"the window of {parent} holds"
        if "ready" in members:
            assert inflight == on_the_way > 0, f"the items of {parent} that wait will be sent"


def _cells(run: Picture, word: str) -> Iterable[tuple[str, Cell]]:
    return [(step, cell) for step, cell in run.cells.items() if cell.word == word]


def check_keys(redis: Redis, run_id: str) -> None:
    """Every key of a run that is over and cleared expires; none of another does."""
    key = run_key(None, run_id)
    found = cast("Iterable[str]", redis.scan_iter(match=f"{_escape(key)}*", count=1000))
    mine = [name for name in found if name.removeprefix(key)[:1] in ("", ":")]
    staged = [name for name in mine if name.removeprefix(key).startswith(":fork:")]
    assert all(redis.pttl(name) > 0 for name in staged), "what was laid out for a fork that was not made expires"
    keys = [name for name in mine if name not in staged]
    is_over = redis.hget(key, "status") in RUN_OVER
    is_cleared = not redis.hexists(f"{shard_key(None, shard_of(run_id))}:clearing", run_id)
    is_posted = not redis.hget(key, "outbox")
    for name in keys:
        expires = is_over and is_cleared and is_posted
        assert (redis.pttl(name) >= 0) == expires, (
            f"{name} expires if and only if its run is over, cleared, and not in the outbox"
        )
    if is_over:
        assert redis.zscore(f"{shard_key(None, shard_of(run_id))}:finished", run_id) is not None
        assert f"{key}:closed" in keys, "waiters are told"
    if is_over and is_cleared:
        assert not [
            name for name in keys if name.removeprefix(key).startswith((":joins", ":window", ":backlog", ":signals"))
        ]


def _escape(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)
