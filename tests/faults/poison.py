"""One bad item of each sort in Redis, among good runs, while workers are killed: each costs itself alone, and can be cleared away.

A bad item is what an older version, a bug or a hand could have left: a record that nobody can read, a time that no calendar has, a value
that is nested too deeply, an entry of something that is gone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import cast

from cantata.client.runs import Run
from cantata.engine.fleet import load, registry
from cantata.engine.limits.limiter import LIMITS_KEY
from cantata.errors import CantataError
from cantata.flows.definitions import Alert, Definitions, Webhook
from cantata.flows.wire import RUN_OVER, ChainNode, ChainRequest
from cantata.ledger import conversations
from cantata.ledger.records import Begun
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import Redis
from cantata.ledger.redis.keys import SHARDS, definitions_key, key_of, run_key, shard_key, shard_of
from cantata.operation.health import checks
from cantata.operation.health.gather import gather
from tests.faults import history
from tests.faults.chaos import Havoc, plan
from tests.faults.load import Load
from tests.faults.past import Violation
from tests.faults.shapes import MODEL, SHAPES, session_of, tool
from tests.faults.stage import Stage, stage
from tests.waiting import until

AT_ONCE = 10
KILLS: Mapping[str, int] = {"kill_worker": 2, "kill_child": 3, "kill_user_worker": 1}
GAP_S = 4.0  # between two kills, in the mean: the supervisor starts a worker anew in a few seconds
SPOILED = 16  # shards with garbage at the head of each list: a quarter, so that many good runs are beside it
DEPTH = 200  # what a version before the bounds recorded; scripts read 128
LOOK_S = 0.25
MAX_AGE_S = (
    40.0  # of the last complete sweep while killing: if all that sweep are killed at once, the next must start first
)
PARKED_S = 240.0  # the third try comes 35 s after the first, and a busy machine is late
MISSED_S = 30 * 86_400.0  # for which a schedule has started no run: one look counts some 1,000 times
NO_JSON = "no JSON"
NEVER = "99999999999999999"  # ms: a year beyond 9999
DEEP = "[" * DEPTH + "]" * DEPTH
LISTS = {
    "leases": ("garbage", "gone|1|dead@nowhere#1~1|a", "|x||"),
    "due": ("garbage", "unknown|gone|a", "retry|gone|a", "||"),
    "ready": ("garbage", "gone|a"),
    "tasks": ("garbage", "gone|1|a"),
    "finished": ("gone|garbage",),
    "item_ends": ("garbage", "session:gone"),
    "schedules": ("garbage", "/gone"),
}
"""The sorted sets of a shard that the sweep reads → what is put at their head."""


@dataclass
class Scene:
    """A stage with bad items."""

    stage: Stage
    chance: random.Random
    is_short: bool
    runs: list[Run] = field(default_factory=list)
    """Which the bad items belong to, and nobody else."""
    due: list[tuple[str, str]] = field(default_factory=list)
    """Sorted sets, and entries that must have left their head."""
    undo: list[Callable[[], object]] = field(default_factory=list)
    """What a hand must repair, since no command can."""

    def put(self, shard: int, name: str, *entries: str) -> None:
        """Put entries at the head of a list of a shard."""
        key = f"{shard_key(self.redis, shard)}:{name}"
        self.redis.zadd(key, dict.fromkeys(entries, 1.0))
        self.due += [(key, entry) for entry in entries]

    def spoil(self, key: str, fields: Mapping[str, str]) -> None:
        """Replace fields of a hash."""
        self.redis.hset(key, items=[text for pair in fields.items() for text in pair])

    def waiting_run(self, definitions: Definitions | None = None) -> Run:
        """A run of two steps that wait for a person, the first of which does."""
        nodes = [ChainNode(node_id="a", kind="wait", next_node="b"), ChainNode(node_id="b", kind="wait")]
        client = self.stage.client.with_definitions(definitions) if definitions else self.stage.client
        run = client.submit_chain(ChainRequest(nodes=nodes, entry_node="a"))
        self.runs.append(run)
        until(partial(is_waiting, run, "a"), f"the wait of {run}", PARKED_S)
        return run

    def sent_run(self) -> Run:
        """A run with a step whose queue nobody serves, so that its message waits."""
        run = self.stage.client.submit_chain(ChainRequest(nodes=[tool("a", "unserved")], entry_node="a"))
        self.runs.append(run)
        until(lambda: run.steps(["a"]), f"the step of {run}", PARKED_S)
        return run

    @property
    def redis(self) -> Redis:
        """Where all of it lies."""
        return self.stage.client.redis


def is_waiting(run: Run, step: str) -> bool:
    """Whether a step waits for its signal."""
    return step in (found := run.steps([step])) and found[step].state == "waiting_signal"


# --- bad items ------------------------------------------------------------------------------------------------------


def bad_entries(scene: Scene) -> None:
    """Garbage, and entries of what is gone, at the head of each list of some shards."""
    for shard in scene.chance.sample(range(SHARDS), SPOILED):
        key = shard_key(scene.redis, shard)
        for name, entries in LISTS.items():
            scene.put(shard, name, *entries)
        scene.spoil(f"{key}:clearing", {"gone": "nowhere"})
        scene.spoil(f"{key}:parked", {"leases|x": NO_JSON, "unknown|x": "[]"})
        scene.redis.rpush(f"{key}:left", "garbage", "gone|a")
        scene.redis.rpush(f"{key}:revoked", "garbage")


def bad_timers(scene: Scene) -> None:
    """Timers of steps that are missing, or that nobody can read."""
    for text in (
        NO_JSON,
        '{"kind": 7}',
        json.dumps({"kind": "wait", "queue": "coordinator", "params": json.loads(DEEP)}),
    ):
        run = scene.waiting_run()
        scene.spoil(f"{run_key(scene.redis, run.run_id)}:steps", {"a": text})
        scene.put(
            shard_of(run.run_id), "due", f"wait|{run.run_id}|a", f"wait|{run.run_id}|missing", f"join|{run.run_id}|a"
        )
    run = scene.waiting_run()
    scene.spoil(f"{run_key(scene.redis, run.run_id)}:state", {"a": "broken"})
    scene.put(shard_of(run.run_id), "due", f"wait|{run.run_id}|a")


def bad_leases(scene: Scene) -> None:
    """Leases of dead workers, whose steps nobody can read."""
    for part, text in (
        (":info", NO_JSON),
        (":steps", NO_JSON),
        (":steps", f'{{"kind": "tool.call", "params": {DEEP}}}'),
    ):
        run = scene.sent_run()
        begun = scene.stage.client.ledger.steps.begin(run.run_id, "a", "tools@nowhere#1")
        assert isinstance(begun, Begun), f"the step of {run} is begun by hand, not {begun}"
        scene.spoil(f"{run_key(scene.redis, run.run_id)}{part}", {"a": text})
        scene.put(shard_of(run.run_id), "leases", begun.lease)


def bad_messages(scene: Scene) -> None:
    """Steps that nobody begins or that are dispatched, and that nobody can read."""
    for text in (NO_JSON, '{"kind": 7}', f'{{"kind": "tool.call", "queue": "tools", "params": {DEEP}}}'):
        run = scene.sent_run()
        scene.spoil(f"{run_key(scene.redis, run.run_id)}:steps", {"a": text})
        scene.redis.zadd(f"{shard_key(scene.redis, shard_of(run.run_id))}:ready", {f"{run.run_id}|a": 0})
    run = scene.sent_run()
    scene.spoil(f"{run_key(scene.redis, run.run_id)}:state", {"a": "dispatched broken"})
    scene.put(shard_of(run.run_id), "tasks", f"{run.run_id}|1|a")


def bad_output(scene: Scene) -> None:
    """An output that is nested too deeply, of a step that others read."""
    run = scene.waiting_run()
    run.signal("a", 1)
    until(partial(is_waiting, run, "b"), f"the second wait of {run}", PARKED_S)
    scene.spoil(f"{run_key(scene.redis, run.run_id)}:out", {"a": DEEP})
    run.signal("b", 2)


def bad_runs(scene: Scene) -> None:
    """Runs with fields that nobody can read."""
    for fields in (
        {"webhooks": NO_JSON, "labels": NO_JSON},
        {"request": DEEP, "usage": NO_JSON},
        {"priority": "x", "code": "\x00"},
    ):
        run = scene.waiting_run()
        scene.spoil(run_key(scene.redis, run.run_id), fields)
        scene.put(shard_of(run.run_id), "due", f"deadline|{run.run_id}|", f"remind|{run.run_id}|a")


def bad_definitions(scene: Scene) -> None:
    """Definitions that nobody can read, of a run that goes on."""
    run = scene.waiting_run(Definitions(alerts={}, webhooks={"own": Webhook(url="https://example.com/own")}))
    digest = cast(str, scene.redis.hget(run_key(scene.redis, run.run_id), "definitions"))
    scene.spoil(definitions_key(scene.redis, shard_of(run.run_id), digest), {"text": NO_JSON})
    run.signal("a", 1)


def bad_schedules(scene: Scene) -> None:
    """Schedules with a spec, times, requests and alerts that nobody can read."""
    spec = {
        "every": "1h",
        "chain": ChainRequest(nodes=[ChainNode(node_id="a", kind="wait")], entry_node="a").model_dump(
            exclude_defaults=True
        ),
    }
    bad: dict[str, Mapping[str, str]] = {
        "spec": {"spec": NO_JSON},
        "deep": {"spec": DEEP},
        "request": {"request": NO_JSON},
        "labels": {"labels": "[]"},
        "quota": {"quota": NO_JSON},
        "far": {"next": NEVER},
        "next": {"next": "soon"},
    }
    for name, fields in bad.items():
        scene.stage.client.schedules.create(f"bad-{name}", spec)
        _spoil_schedule(scene, f"bad-{name}", fields)
    alerting = Definitions(
        webhooks={"own": Webhook(url="https://example.com/own")},
        alerts={"own": Alert(on="schedule_missed", webhook="own")},
    )
    client = scene.stage.client.with_definitions(alerting)
    client.schedules.create("bad-alert", spec)
    key = _spoil_schedule(scene, "bad-alert", {"next": str(int((clock.now() - MISSED_S) * 1000))})
    digest = cast(str, scene.redis.hget(key, "definitions"))
    scene.spoil(definitions_key(scene.redis, shard_of("/bad-alert"), digest), {"text": '{"alerts": 7}'})


def _spoil_schedule(scene: Scene, name: str, fields: Mapping[str, str]) -> str:
    shard = shard_of(f"/{name}")
    key = f"{shard_key(scene.redis, shard)}:schedule:/{name}"
    assert scene.redis.exists(key), f"schedule {name} lies where it is spoiled"
    scene.spoil(key, fields)
    scene.put(shard, "schedules", f"/{name}")
    scene.undo.append(partial(scene.stage.client.schedules.delete, name))
    return key


def bad_outbox(scene: Scene) -> None:
    """Entries in the outboxes of webhooks."""
    for shard in scene.chance.sample(range(SHARDS), SPOILED):
        key = shard_key(scene.redis, shard)
        post = json.dumps({"run": "gone", "at": 1, "keep_ms": 1, "posts": [{"events": ["end"]}]})
        scene.redis.rpush(f"{key}:outbox:", "garbage", f"1 1 {NO_JSON}", f"1 1 {post}", "1 1 []")
        scene.put(shard, "outbox", "")


def bad_permits(scene: Scene) -> None:
    """Calls that wait for the shared limits, and permits, ahead of those of good runs."""
    limits, queue = f"cantata:{LIMITS_KEY}", json.dumps([f"model:{MODEL}"], separators=(",", ":"))
    entries = {"gone|a": NO_JSON, "gone|b": "[]", "gone|c": DEEP}
    scene.spoil(f"{limits}:tickets", entries)
    scene.redis.zadd(f"{limits}:queue:{queue}", dict.fromkeys(entries, 1.0))
    scene.redis.zadd(f"{limits}:queues", {queue: 1.0, NO_JSON: 1.0, "[]": 2.0})
    scene.spoil(f"{limits}:permits", {"gone|1|x|d": NO_JSON, "gone|1|x|e": "{}"})
    scene.redis.zadd(f"{limits}:active", {"gone|1|x|d": 1.0, "gone|1|x|e": 1.0})


def bad_session(scene: Scene) -> None:
    """A run that is gone at the head of the queue of a session, whose turns are good."""
    tag = "session.poisoned"
    scope = conversations.scoped("", session_of(tag))
    scene.redis.rpush(f"{shard_key(scene.redis, conversations.shard_of_session(scope))}:session:{scope}:queue", "gone")
    scene.stage.submit(SHAPES["session"], tag)


def bad_records(scene: Scene) -> None:
    """Batches and a worker that nobody can read."""
    store = scene.stage.client.batches.store
    index = f"{store.key_of('x').rpartition(':batch:')[0]}:batches:"
    bad = {
        "bad-text": {"identity": NO_JSON},
        "bad-deep": {"identity": DEEP, "state": "running"},
        "bad-counts": {"identity": "{}", "delivered": "x"},
    }
    for name, fields in bad.items():
        scene.spoil(store.key_of(name), fields)
        scene.redis.zadd(index, {name: clock.now() * 1000})
        scene.undo.append(partial(scene.redis.delete, store.key_of(name)))
        scene.undo.append(partial(scene.redis.zrem, index, name))
    workers = key_of(scene.redis, registry.WORKERS_KEY)
    scene.spoil(workers, {"bad": NO_JSON, "deep": DEEP, "list": "[]"})
    scene.undo.append(partial(scene.redis.hdel, workers, "bad", "deep", "list"))


SORTS: Mapping[str, Callable[[Scene], None]] = {
    "entries": bad_entries,
    "timers": bad_timers,
    "leases": bad_leases,
    "messages": bad_messages,
    "output": bad_output,
    "runs": bad_runs,
    "definitions": bad_definitions,
    "schedules": bad_schedules,
    "outbox": bad_outbox,
    "permits": bad_permits,
    "session": bad_session,
    "records": bad_records,
}


# --- the part -------------------------------------------------------------------------------------------------------


def poison(
    folder: Path, seed: int, seconds: float, sorts: Collection[str] = tuple(SORTS), *, is_short: bool = False
) -> tuple[str, list[Violation]]:
    """Spoil under load, kill workers for so long, then clear away; a line about it, and what is wrong.

    If `is_short`, no bad item waits for its next try.
    """
    with stage(folder) as world, (folder / "actions.log").open("w", buffering=1) as log:
        shapes = [shape for shape in SHAPES.values() if shape.name not in ("unserved", "scheduled")]
        good = Load(
            world,
            seed,
            lambda chance: (world.client, chance.choice(shapes)),
            at_once=AT_ONCE,
            lingers_s=(0.0, 0.0, 1.5),
        )
        scene = Scene(world, random.Random(seed), is_short)
        havoc = Havoc(world, lambda text: log.write(f"{text}\n"))
        good.start()
        try:
            for name in sorts:
                SORTS[name](scene)
            with _sweep_ages(world) as ages_s:
                havoc.do(plan(seed, seconds, KILLS, gap_s=GAP_S))
        finally:
            havoc.heal()
            good.end()
        world.wait_whole()
        violations = [*_left(scene), *_told(scene), *_readers(scene)]
        parked = len(world.client.ledger.parked.find())
        violations += _clear_away(scene)
        if (worst_s := max(ages_s)) > MAX_AGE_S:
            violations.append(Violation("", "", f"a complete sweep each {MAX_AGE_S:g} s", f"none for {worst_s:.1f} s"))
        violations += history.check(world.journal, world.client.redis)
        return (
            f"{len(good.runs)} good runs, {len(scene.runs)} bad ones, {parked} items parked; a sweep each {worst_s:.1f} s at least",
            violations,
        )


@contextmanager
def _sweep_ages(world: Stage) -> Iterator[list[float]]:
    """How long ago the last complete sweep was, in seconds, each time somebody looked until the block is over."""
    ages_s, is_over, since = list[float](), threading.Event(), clock.now()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            swept_at = cast("str | None", world.client.redis.get(key_of(world.client.redis, load.SWEPT_KEY)))
            ages_s.append(clock.now() - float(swept_at or since))

    with ThreadPoolExecutor(1, "ages") as threads:
        looking = threads.submit(look)
        try:
            yield ages_s
        finally:
            is_over.set()
        looking.result()


def _due(scene: Scene) -> list[tuple[str, str]]:
    """The bad entries that are still at the head of their list, or are tried again before they are parked; and that list."""
    now_ms = clock.now() * 1000
    scores = ((key, entry, scene.redis.zscore(key, entry)) for key, entry in scene.due)
    return [
        (key, entry)
        for key, entry, score in scores
        if score is not None and _is_tried(scene, key, entry, score, now_ms)
    ]


def _is_tried(scene: Scene, key: str, entry: str, score: float, now_ms: float) -> bool:
    if key.endswith(
        ":schedules"
    ):  # one that cannot be read is looked at each minute, as the next worker may be able to
        parked = f"{key.removesuffix('schedules')}parked"
        return score <= now_ms or (score != inf and bool(scene.redis.hexists(parked, f"schedules|{entry}")))
    return score < now_ms + PARKED_S * 1000


def _wait_left(scene: Scene) -> None:
    def is_left() -> bool:
        due = _due(scene)
        for key, entry in due if scene.is_short else ():
            scene.redis.zadd(key, {entry: 1.0}, xx=True)
        return not due

    until(is_left, "the end of tries", PARKED_S, pause_s=0.5)


def _left(scene: Scene) -> Iterator[Violation]:
    """Each bad entry is handled, or parked: none is tried for ever."""
    with suppress(TimeoutError):
        _wait_left(scene)
    for key, entry in _due(scene):
        yield Violation("", "", "an end of tries with each bad entry", f"{entry!r} in {key!r}")


def _told(scene: Scene) -> Iterator[Violation]:
    """What an operator sees: the sweep works, and what is parked has a line."""
    report = checks.evaluate(gather(scene.stage.client.redis_url, version=""))
    by_name = {check.name: check for check in report.checks}
    for name, status in (("sweep", "ok"), ("parked", "degraded")):
        if name not in by_name or by_name[name].status != status:
            yield Violation("", "", f"{name} to be {status} in `submit status`", str(by_name.get(name, report)))


def _readers(scene: Scene) -> Iterator[Violation]:
    """Lists, each with the bad records in it."""
    client = scene.stage.client
    lists: dict[str, Callable[[], object]] = {
        "runs": lambda: client.runs(most=1000),
        "inbox": client.inbox,
        "schedules": client.schedules.list_all,
        "sessions": client.sessions.list,
        "batches": client.batches.store.newest,
        "workers": lambda: registry.workers(client.redis),
        "fleet warnings": client.fleet_warnings,
    }
    for name, read in lists.items():
        try:
            read()
        except Exception as error:  # noqa: BLE001  # whatever it is, the list is lost for one record
            yield Violation(
                "", "", f"a list of {name} with rows that cannot be read", f"{type(error).__name__}: {str(error)[:300]}"
            )


def _clear_away(scene: Scene) -> Iterator[Violation]:
    """Do what an operator would: drop what is parked, cancel the runs, delete the schedules. Nothing is left then."""
    client = scene.stage.client
    yield from _drop_one(scene)
    for undo in scene.undo:
        try:
            undo()
        except CantataError as error:
            yield Violation("", "", "a bad record that can be removed", str(error))
    scene.redis.delete(
        *scene.redis.keys("cantata.unserved*")
    )  # messages of the bad runs, in a queue that nobody serves
    for item in client.ledger.parked.find():
        client.ledger.parked.act(item.id, "drop", "the suite")
    good = {line.run_id for line in scene.stage.journal.of("accepted")}
    for record in client.runs(most=10_000):
        if record.run_id not in good and record.status not in RUN_OVER:
            try:
                client.run(record.run_id).cancel()
            except CantataError as error:
                yield Violation(record.run_id, "", "an end by `cancel`", str(error))
    for run in scene.runs:
        with suppress(TimeoutError):
            until(lambda: run.status() in RUN_OVER, f"the end of {run}", PARKED_S)  # noqa: B023  # called at once
        if (status := run.status()) not in RUN_OVER:
            yield Violation(run.run_id, "", "a bad run that is over", status)
    with suppress(TimeoutError):
        until(
            lambda: not client.ledger.parked.find() and not _clearing(scene),
            "the end of what is parked",
            PARKED_S,
            pause_s=0.5,
        )
    for item in client.ledger.parked.find():
        yield Violation("", "", "nothing parked when all is dropped and cancelled", str(item))


def _clearing(scene: Scene) -> bool:
    """Whether an ended run still has entries that are to be removed."""
    return any(scene.redis.exists(f"{shard_key(scene.redis, shard)}:clearing") for shard in range(SHARDS))


def _drop_one(scene: Scene) -> Iterator[Violation]:
    """`submit parked list` and `drop`, as a person calls them."""

    def submit(*words: str) -> list[dict[str, str]]:
        command = [sys.executable, "-m", "cantata.surfaces.cli", "parked", *words, "--json"]
        surroundings = {**os.environ, "REDIS_URL": scene.stage.client.redis_url}
        found: list[dict[str, str]] = json.loads(
            subprocess.run(command, env=surroundings, stdout=subprocess.PIPE, check=True).stdout
        )
        return found

    listed = submit("list")
    if not listed:
        yield Violation("", "", "bad items in `submit parked list`", "none")
        return
    dropped = submit("drop", listed[0]["id"])
    if [each["id"] for each in dropped] != [listed[0]["id"]] or listed[0]["id"] in [
        each["id"] for each in submit("list")
    ]:
        yield Violation("", "", f"{listed[0]['id']} to be dropped by `submit parked drop`", str(dropped))
