"""What Redis does at rest, with many workers, parked runs and idle followers; sweeps, a worker's start and live events beside them."""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cantata.client.client import EmbeddedClient
from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.fleet import registry
from cantata.engine.fleet.registry import Worker
from cantata.engine.limits import step_costs
from cantata.engine.start import plan_run
from cantata.engine.sweeper import SWEEP_LOCK, SWEEP_LOCK_MS
from cantata.flows.definitions import Definitions
from cantata.flows.graph import START, Spec
from cantata.ledger.encoding import to_json
from cantata.ledger.intervals import LEASE_S, RENEW_S, SWEEP_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun
from cantata.ledger.redis.connection import Redis, connect
from cantata.ledger.redis.keys import run_key, shard_key
from cantata.ledger.run_store import RunStore
from cantata.ledger.runs.streams import Streams, StreamsEnded, connect_async
from cantata.ledger.scripts import ScriptCaller
from cantata.ledger.step_store import StepStore
from cantata.operation.embedded.stack_plan import worker_command
from cantata.values import JsonValue
from cantata_workers.process.duties import sweep_once
from cantata_workers.process.process import EXCHANGE_INTERVAL_S
from cantata_workers.process.service import ANNOUNCE_INTERVAL_S, MAX_ANNOUNCE_INTERVAL_S
from tests.bench.measure import PATIENCE_S

WORKERS = 1000
FOLLOWERS = 5000
PARKED = 100_000
PARKED_AT_ONCE = 500
REST_S = 20.0
SETTLE_S = 3.0
SWEEPS = 40
EVENTS = 20
BETWEEN_EVENTS_S = 0.23
LOOK_S = 0.02
LATER_S = 120.0
PART_S = 0.1  # the fake workers announce themselves in parts, spread over their interval
TARGET_PERCENT = 3.0
TARGET_SWEEP_MS = 5.0
OF_SWEEPS = {"zcount", "exists", "zrange", "zrangebyscore", "hscan", "evalsha", "info"}
TICKS = os.sysconf("SC_CLK_TCK")
REQUEST: JsonValue = {"nodes": [{"node_id": "approve", "kind": "wait"}], "entry_node": "approve", "chain_id": "letter"}


@dataclass(frozen=True)
class Rest:
    """What Redis did while nothing happened."""

    what: str
    percent: float
    """of a core, Redis"""
    calls: Mapping[str, float]
    """command → calls a second"""
    call_us: Mapping[str, float]
    """command → what a call took Redis"""
    followers_percent: float | None = None
    """of a core, the process that follows"""


@dataclass(frozen=True)
class Started:
    """One more real worker."""

    start_s: float
    start_calls: Mapping[str, int]
    """command → calls until it had announced itself"""
    calls: Mapping[str, float]
    """command → calls a second at rest"""
    executed_ms: float
    """what Redis executes for it each second, without reading and writing its connections"""


@dataclass(frozen=True)
class Scale:
    """All of it."""

    rests: list[Rest]
    sweeps_ms: list[float]
    slowest_script_ms: float
    run_bytes: float
    worker: Started
    idle_ms: list[float]
    """from the first event of an idle stream to its follower"""
    active_ms: list[float]
    """from an event to the follower of a stream that had one just before"""


def measure_scale(client: EmbeddedClient) -> Scale:
    """Add workers, runs and followers to a stack, and look at its Redis after each."""
    redis = client.redis
    rests = [_rest(redis, "the stack alone")]
    with _fleet(client.redis_url) as quiet:
        rests.append(_rest(redis, f"+ {WORKERS:,} registered workers and connections"))
        run_bytes = _park(client.ledger)
        usual = _rest(redis, f"+ {PARKED:,} parked runs")
        redis.config_set("slowlog-log-slower-than", 100)
        redis.slowlog_reset()
        sweeps_ms = _sweeps_ms(client)
        slowest_us = max(
            (each["duration"] for each in redis.slowlog_get(128) if each["command"].startswith(b"EVAL")), default=0
        )
        quiet.set()
        alone = _rest(redis, "while they are quiet")
        with _worker(redis, client.redis_url) as (start_s, start_calls):
            another = _rest(redis, "with another real worker")
        with _calling(client.redis_url):
            calling = _rest(redis, f"with the calls of {WORKERS:,} idle workers, each on its connection")
        quiet.clear()
        with _leased(client.redis_url):
            busy = _rest(redis, "+ one step under way")
        with _followers(client.redis_url) as followers:
            rests += [usual, busy, calling, _rest(redis, f"instead, {FOLLOWERS:,} idle followers", followers.pid)]
            idle_ms = [_event_ms(client.ledger, followers, f"parked-{number}") for number in range(EVENTS)]
            active_ms = [_event_ms(client.ledger, followers, "parked-0") for _ in range(EVENTS)]
    calls = _more(another, alone)
    worker = Started(
        start_s,
        {name: round((a_second - alone.calls.get(name, 0.0)) * start_s) for name, a_second in start_calls.items()},
        calls,
        sum(a_second * another.call_us[name] for name, a_second in calls.items()) / 1000,
    )
    return Scale(rests, sweeps_ms, slowest_us / 1000, run_bytes, worker, idle_ms, active_ms)


def _more(more: Rest, usual: Rest) -> dict[str, float]:
    """Return the calls a second that were added, except those of scripts of sweeps, of which there may be one more by chance."""
    added = {
        name: a_second - usual.calls.get(name, 0.0) for name, a_second in more.calls.items() if name not in OF_SWEEPS
    }
    return {name: a_second for name, a_second in added.items() if a_second > 0.04}


def _rest(redis: Redis, what: str, followers: int | None = None) -> Rest:
    """Return what Redis did over REST_S."""
    time.sleep(SETTLE_S)
    pid = int(redis.info("server")["process_id"])
    before, cpu, follow, since = _stats(redis), _cpu_s(pid), _cpu_s(followers), time.monotonic()
    time.sleep(REST_S)
    took_s = time.monotonic() - since
    after = _stats(redis)
    calls = _a_second(before, after, took_s)
    call_us = {
        name: (after[name][1] - before.get(name, (0, 0))[1]) / (a_second * took_s) for name, a_second in calls.items()
    }
    percent, followers_percent = (_cpu_s(pid) - cpu) / took_s * 100, (_cpu_s(followers) - follow) / took_s * 100
    rest = Rest(what, percent, calls, call_us, followers_percent if followers else None)
    sys.stderr.write(f"{rest.what}: {rest.percent:.1f} % of a core, {sum(calls.values()):,.0f} calls/s\n")
    return rest


def _stats(redis: Redis) -> dict[str, tuple[int, int]]:
    """Return how often each command was called, and the µs it took; commands of scripts too."""
    return {
        name.removeprefix("cmdstat_"): (each["calls"], each["usec"])
        for name, each in redis.info("commandstats").items()
    }


def _a_second(
    before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]], took_s: float
) -> dict[str, float]:
    """Return the calls a second by command."""
    return {name: more / took_s for name, (calls, _) in after.items() if (more := calls - before.get(name, (0, 0))[0])}


def _cpu_s(pid: int | None) -> float:
    """Return the processor time of a process. Reads /proc, so Linux only."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def _fleet(url: str) -> Iterator[threading.Event]:
    """Let workers be registered, each with a connection, and announce themselves as real ones do, but many in one pipeline.

    While the event that it yields is set, they are quiet: their entries are of a later time.
    """
    names = [f"fake{number}@host{number % 50}" for number in range(WORKERS)]
    connections = [connect(url, owner=f"{name}#1~ab") for name in names]
    for each in connections:
        each.ping()
    stopping, quiet, redis = threading.Event(), threading.Event(), connect(url)
    workers = [
        Worker(
            name=name,
            queues=("fakes",),
            concurrency=2,
            pid=number,
            host=name.partition("@")[2],
            version="0.1.0",
            started_at=1.0,
            metrics_url="http://10.0.0.1:9100/metrics",
        )
        for number, name in enumerate(names)
    ]

    def announce() -> None:
        part, is_later = 0, False
        while not stopping.wait(PART_S):
            if quiet.is_set() and is_later:
                continue
            parts, is_later = (
                1
                if quiet.is_set()
                else round(registry.interval_s(ANNOUNCE_INTERVAL_S, MAX_ANNOUNCE_INTERVAL_S) / PART_S),
                quiet.is_set(),
            )
            registry.published_slots(redis)  # the number of workers, for the interval
            seen_at = time.time() + LATER_S * is_later
            with redis.pipeline(transaction=False) as pipe:
                for worker in workers[part % parts :: parts]:
                    pipe.time()
                    pipe.hget("cantata:workers", worker.name)
                    pipe.hset(
                        "cantata:workers", worker.name, worker.model_copy(update={"seen_at": seen_at}).model_dump_json()
                    )
                    pipe.get("cantata:capacity")
                pipe.execute()
            part += 1

    thread = threading.Thread(target=announce, daemon=True)
    thread.start()
    try:
        yield quiet
    finally:
        stopping.set()
        thread.join()
        redis.hdel("cantata:workers", *names)
        for each in connections:
            each.close()


@contextmanager
def _calling(url: str) -> Iterator[None]:
    """Call Redis as the idle workers of a fleet do, except for the broker: each on its connection, one after the other."""
    stopping, due = threading.Event(), [(0.0, number, number % 3) for number in range(3 * WORKERS)]
    names = [f"fake{number}@host{number % 50}" for number in range(WORKERS)]
    connections = [connect(url, owner=f"{name}#2~ab") for name in names]
    lock = f"{shard_key(connections[0], 0)}:{SWEEP_LOCK}"

    def call(number: int, sort: int) -> float:
        name, redis = names[number // 3], connections[number // 3]
        if sort == 0:
            registry.announce(
                redis,
                Worker(name=name, queues=("fakes",), concurrency=2, pid=1, host="h", version="0.1.0", started_at=1.0),
            )
            return registry.interval_s(ANNOUNCE_INTERVAL_S, MAX_ANNOUNCE_INTERVAL_S)
        if sort == 1:
            step_costs.share(redis, {})
            registry.published_slots(redis)
            return registry.interval_s(EXCHANGE_INTERVAL_S)
        redis.set(lock, name, nx=True, get=True, px=SWEEP_LOCK_MS)
        return registry.interval_s(SWEEP_S)

    def call_all() -> None:
        registry.published_slots(connections[0])
        for index, (_, number, sort) in enumerate(due):  # the first calls are spread over 5 s
            due[index] = (time.monotonic() + 5.0 * index / len(due), number, sort)
        while not stopping.is_set():
            at, number, sort = heapq.heappop(due)
            if (left_s := at - time.monotonic()) > 0:
                time.sleep(left_s)
            heapq.heappush(due, (max(at, time.monotonic() - 1.0) + call(number, sort), number, sort))

    thread = threading.Thread(target=call_all, daemon=True)
    thread.start()
    time.sleep(6.0)
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        for each in connections:
            each.close()


def _park(ledger: Ledger) -> float:
    """Park runs, as the ledger's scripts do, many in one round trip; return the bytes of one."""
    redis, calls = ledger.redis, defaultdict[str, list[tuple[str, ...]]](list)
    definitions, outcome, before = "{}", plan_run("chain", REQUEST, Definitions()), _used(redis)
    recorder = _Recorder(redis, calls)
    runs, steps = RunStore(recorder), StepStore(recorder, lease_s=LEASE_S)
    for start in range(0, PARKED, PARKED_AT_ONCE):
        for run_id in (f"parked-{number}" for number in range(start, start + PARKED_AT_ONCE)):
            (runs if start else ledger.runs).accept(  # the first ones bring the definitions to all shards
                run_id,
                kind="chain",
                request=to_json(REQUEST),
                definitions=definitions,
                timeout_s=86_400,
                max_attempts=3,
                max_steps=1000,
            )
            calls["ledger/begin"].append((run_id, START, "bench~1", "60000"))
            begun = Begun(run_id, START, 1, "bench~1", Spec(kind="run.start"), None, 0, {}, "")
            steps.commit(begun, outcome, output="null", info={"ms": 3.1})
        for name in ("ledger/accept", "ledger/begin", "ledger/commit"):
            ledger.caller.call_runs(name, calls.pop(name, []))
    assert str(redis.hget(f"{run_key(redis, run_id)}:state", "approve")).startswith("waiting_signal"), (
        "the last one waits for a signal"
    )
    return (_used(redis) - before) / PARKED


class _Recorder(ScriptCaller):
    """Keeps the calls of stores, to make many at once."""

    def __init__(self, redis: Redis, calls: Mapping[str, list[tuple[str, ...]]]) -> None:
        super().__init__(redis, patience_s=PATIENCE_S, replicas=0)
        self._calls = calls

    def call(self, name: str, run_id: str, *args: str | float) -> list[Any]:
        self._calls[name].append((run_id, *map(str, args)))
        return ["new", 0] if name == "ledger/accept" else ["result", "ok", "results_before", []]


def _used(redis: Redis) -> int:
    memory = redis.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_not_counted_for_evict"]) - int(memory["mem_clients_normal"])


def _sweeps_ms(client: EmbeddedClient) -> list[float]:
    app = make_app(client.redis_url)
    samples = []
    for _ in range(SWEEPS):
        since = time.perf_counter()
        sweep_once(app, client.ledger)
        samples.append((time.perf_counter() - since) * 1000)
        time.sleep(0.1)
    app.close()
    return samples


@contextmanager
def _worker(redis: Redis, url: str) -> Iterator[tuple[float, dict[str, float]]]:
    """Start one more worker; yield the seconds until it had announced itself, and the calls a second meanwhile."""
    before, since = _stats(redis), time.monotonic()
    worker = subprocess.Popen(worker_command("another", ("coordinator",), 2), env=os.environ | {"REDIS_URL": url})
    try:
        while not redis.hexists("cantata:workers", f"another@{socket.gethostname()}"):
            assert time.monotonic() < since + PATIENCE_S, "the worker started"
            time.sleep(LOOK_S)
        took_s = time.monotonic() - since
        yield took_s, _a_second(before, _stats(redis), took_s)
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)


@contextmanager
def _leased(url: str) -> Iterator[None]:
    """Let a step be under way: its lease is renewed each second, by a process that is connected."""
    ledger, stopping = Ledger(connect(url, owner="bench#1~ab")), threading.Event()
    ledger.runs.accept(
        "leased",
        kind="chain",
        request=to_json(REQUEST),
        definitions="{}",
        timeout_s=86_400,
        max_attempts=3,
        max_steps=9,
    )
    begun = ledger.steps.begin("leased", START, "bench#1~ab")
    assert isinstance(begun, Begun)

    def renew() -> None:
        while not stopping.wait(RENEW_S):
            assert not ledger.leases.renew([begun.lease])

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        ledger.runs.cancel("leased")
        ledger.redis.close()


@contextmanager
def _followers(url: str) -> Iterator[subprocess.Popen[str]]:
    """Follow parked runs in a process, which prints the name of a run and the time when an event of it came."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.scale", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "following\n"
    try:
        yield process
    finally:
        process.communicate(timeout=PATIENCE_S)


def _event_ms(ledger: Ledger, followers: subprocess.Popen[str], run_id: str) -> float:
    """Return the time from an event to its follower. Both processes have the clock of this machine."""
    assert followers.stdout
    time.sleep(BETWEEN_EVENTS_S)
    since = time.time()
    ledger.runs.append_event(run_id, "warning", detail={"message": "bench"})
    return (float(followers.stdout.readline()) - since) * 1000


async def _follow(url: str) -> None:
    redis = connect_async(url)
    streams = Streams(redis)
    reading = asyncio.create_task(streams.run())

    async def follow(run_id: str) -> None:
        with suppress(StreamsEnded), streams.follow(run_id) as follower:
            await follower.entries()  # those before
            while True:
                await follower.entries()
                print(time.time(), flush=True)  # to the process that started this one

    followers = [asyncio.create_task(follow(f"parked-{number}")) for number in range(FOLLOWERS)]
    await asyncio.sleep(SETTLE_S)
    print("following", flush=True)  # as above
    await asyncio.to_thread(sys.stdin.read)
    streams.end()
    await asyncio.gather(reading, *followers)
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(_follow(sys.argv[1]))
