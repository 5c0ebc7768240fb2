"""After whatever two tenants did, each thing takes about as much as is counted for it, and nothing is counted when nothing is left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import cast
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis import Redis

from cantata.errors import CantataError
from cantata.features.batches.batch_store import BatchStore, Delivered
from cantata.features.forks import fork_store
from cantata.features.forks import rewind as rewinding
from cantata.features.forks.staging import Stage
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.schedules.schedule_store import Firing, ScheduleStore, scope_of
from cantata.features.sessions.builders import Builder
from cantata.features.sessions.sessions import Sessions
from cantata.flows.definitions import Quota
from cantata.flows.graph import START, Graph, Outcome
from cantata.ledger import conversations
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun, RunSession
from cantata.ledger.redis.keys import SHARDS, id_in_shard, memory_key, run_key, shard_key, shard_of
from cantata.ledger.redis.pieces import ask_each
from cantata.values import ErrorInfo, JsonValue, Usage
from tests.examples import examples
from tests.integration.state.play import row, wait, work
from tests.waiting import until

TENANTS = ("acme", "o/other: ü")
FACTOR = 3  # as docs/models.md promises
LARGE = 200  # bytes of a text that is not among the fields and names that every thing has
RUN_BYTES, STEP_BYTES, ITEM_BYTES = 3000, 600, 1000  # that are counted beside texts, as the scripts have them
SHARED = 1000  # bytes of the keys that count the memories of a tenant
MOST_COUNTED = 1.5  # times what a thing takes, beside KEY
KEY = 1500  # bytes that are counted at most for a key, beside its texts
COUNTS = ("tenants", "rows", "bytes", "log_bytes", "signals", "names", "items", "item_ends", "sizes")
UNLIMITED = Quota(kept_bytes=10**12)


class Tenant:
    """What one tenant may do. `n` and `size` decide about names, and about the size of texts."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.redis = ledger.redis
        self.name = name
        self.prefix = quote(name, safe="")
        self.count = 0
        self.runs: dict[str, bool] = {}  # id → whether it belongs to a session
        self.begun: dict[str, list[Begun]] = {}
        self.schedules, self.batches = ScheduleStore(ledger), BatchStore(ledger, name)
        self.bank = MemoryStore(ledger, tenant=name)

    def accept(self, n: int, size: int) -> None:
        self.count += 1
        session, run_id = None, f"{self.prefix}-{self.count}"
        if n % 3 == 0:
            scope = conversations.scoped(self.name, f"s{n % 2}")
            run_id = id_in_shard(conversations.shard_of_session(scope), f"{run_id}.")
            session = RunSession(scope, 60.0, 4, 100)
        self.ledger.runs.accept(
            run_id,
            kind="turn",
            request=to_json({"text": "x" * size}),
            definitions="{}",
            timeout_s=60,
            max_attempts=3,
            max_steps=1000,
            labels={"tenant": self.name, "note": "n" * min(size, 400)},
            session=session,
            retention_s=60,
            webhooks=[{"to": f"https://{'w' * 40}.org", "on": {"end": True}}] if n % 5 == 0 else (),
        )
        self.runs[run_id] = session is not None
        if n % 4:
            self.plan(run_id, n, size)

    def plan(self, run_id: str, n: int, size: int) -> None:
        answer = self.ledger.steps.begin(run_id, START, "worker")
        if not isinstance(answer, Begun):
            return
        ids = [f"a{i}" for i in range(1 + n % 5)]
        steps = [*map(work, ids), wait("w"), work("z", given={"value": "g" * size})]
        graph = Graph(steps=tuple(steps), edges=row(*ids, "w", "z"), terminals=("z",))
        self.commit(answer, Outcome(output="", fragment=graph))

    def commit(self, begun: Begun, outcome: Outcome) -> None:
        info: dict[str, JsonValue] = {"error": outcome.error.model_dump()} if outcome.error else {}
        self.ledger.steps.commit(begun, outcome, output=to_json(outcome.output), info=info)

    def work(self, n: int, size: int) -> None:
        if (run_id := self.one_run(n)) is None:
            return
        for step in ("a0", "a1", "a2", "a3", "a4", "z"):
            answer = self.ledger.steps.begin(run_id, step, "worker")
            if isinstance(answer, Begun):
                error = ErrorInfo(code="broke", message="e" * size)
                failed = {0: Outcome(status="failed", error=error), 1: Outcome(status="retry", error=error)}
                self.commit(answer, failed.get(n % 7, Outcome(output="o" * size)))

    def say(self, n: int, size: int) -> None:
        """A step that streams, logs, and is released."""
        if (run_id := self.one_run(n)) is None:
            return
        self.ledger.runs.append_log(run_id, ["l" * (size % 3000)] * 3, most=10, most_bytes=5000)
        self.ledger.runs.append_event(run_id, "fallback", step_id="a0", detail={"to": "m" * size})
        answer = self.ledger.steps.begin(run_id, "a0", "worker")
        if isinstance(answer, Begun):
            self.ledger.steps.append_delta(answer, "d" * (size % 100))
            self.ledger.steps.release(answer)

    def signal(self, n: int, size: int) -> None:
        if (run_id := self.one_run(n)) is not None:
            self.ledger.steps.signal(run_id, "w" if n % 2 else "z", "s" * size, check=lambda *_: "")

    def cancel(self, n: int, size: int) -> None:
        if (run_id := self.one_run(n)) is not None:
            self.ledger.runs.cancel(run_id)

    def drop(self, n: int, size: int) -> None:
        if (run_id := self.one_run(n)) is not None:
            self.ledger.runs.drop([run_id])

    def expire_run(self, n: int, size: int) -> None:
        run_id = self.one_run(n)
        if run_id is None or self.redis.hget(run_key(None, run_id), "outbox"):  # such a run does not expire yet
            return
        if self.redis.zscore(f"{self.shard(run_id)}:finished", run_id) is not None:
            self.redis.delete(run_key(None, run_id))
            self.delete(f"{run_key(None, run_id)}:*")
            self.redis.zadd(f"{self.shard(run_id)}:finished", {run_id: 1})
            self.ledger.leases.sweep(shard_of(run_id))

    def fork(self, n: int, size: int) -> None:
        if (run_id := self.one_run(n)) is None:
            return
        with suppress(CantataError):
            past = fork_store.read(self.ledger, run_id)
            fork = rewinding.retry(past)
            self.count += 1
            forked = id_in_shard(shard_of(run_id), f"{self.prefix}-{self.count}f")
            if n % 2:
                fork_store.make(
                    self.ledger, forked, fork, request={"text": "x"}, given="y", labels={"tenant": self.name}
                )
                self.runs[forked] = self.runs[run_id]
            else:  # whoever made it dies
                Stage(self.ledger, forked, fork).lay_out("1")

    def post(self, n: int, size: int) -> None:
        """Create runs that post to webhooks."""
        for shard, tenant in self.ledger.outbox.due(range(SHARDS)):
            self.ledger.outbox.create(shard, tenant, range(SHARDS))

    def schedule(self, n: int, size: int) -> None:
        scope = scope_of(self.name, f"t{n % 3}")
        offer = {
            "step": START,
            "spec": "{}",
            "resend_ms": 1000,
            "fields": {"kind": "turn", "tenant": self.name, "timeout_ms": 1000},
        }
        fields = {
            "spec": "{}", "timing": str(n % 4), "request": to_json({"text": "q" * size}), "offer": to_json(cast(JsonValue, offer)),
            "labels": "{}", "quota": "{}", "origin": "api", "next": "",
        }  # fmt: skip
        self.schedules.put(shard_of(scope), scope, fields, "{}", None)
        self.schedules.add_pending(scope, [1000 + n, 2000 + n], {"why": "p" * min(size, 300)} if n % 2 else None)
        if n % 3 == 0:
            self.schedules.pause(scope, "because " * (n % 9))
        elif n % 3 == 1:
            self.schedules.resume(scope, None, None)

    def fire(self, n: int, size: int) -> None:
        """Have a time of a schedule wait for the one before."""
        scope = scope_of(self.name, f"t{n % 3}")
        mark = self.redis.hget(f"{self.shard(scope)}:schedule:{scope}", "mark")
        self.schedules.fire(
            [
                Firing(
                    shard_of(scope),
                    scope,
                    str(mark),
                    "queue",
                    [{"at": str(n), "run": "r", "request": "{}", "labels": "{}"}],
                )
            ]
        )

    def unschedule(self, n: int, size: int) -> None:
        self.schedules.delete(scope_of(self.name, f"t{n % 3}"))

    def batch(self, n: int, size: int) -> None:
        name = f"b{n % 3}"
        identity: dict[str, JsonValue] = {"target": {"kind": "agent", "name": "a"}, "columns": {"c": "c" * 50}}
        plain = {"file": "", "concurrency": "1", "budget_usd": "", "labels": "{}", "webhooks": to_json(["h" * size])}
        _, found = self.batches.open(name, identity, plain)
        if found.state == "running":
            rows = found.submitted + 1 + size
            self.batches.record(found, submitted=rows, delivered=[Delivered(rows - 1, bool(n % 2), Usage())])
        if n % 4 == 0:
            self.batches.change(name, "cancel")

    def remember(self, n: int, size: int) -> None:
        bank = self.bank if n % 2 else self.bank.of(session=f"s{n % 3}")
        namespace, key = f"n{n % 4}", f"k{n % 5}"
        if n % 7 == 0:
            bank.keep_for(namespace, 50.0 if n % 2 else None)
        with suppress(CantataError):
            bank.append(key, "i" * min(size, 500), namespace)
        bank.store_memory(key if n % 5 else f"{key}x", "v" * size, namespace, ttl_s=(None, 0.002, 100.0)[n % 3])

    def forget(self, n: int, size: int) -> None:
        bank = self.bank if n % 2 else self.bank.of(session=f"s{n % 3}")
        if n % 3:
            bank.delete_memory(f"k{n % 5}", f"n{n % 4}")
        else:
            bank.clear_memories(f"n{n % 4}" if n % 2 else None)

    def build(self, n: int, size: int) -> None:
        fields = ["plan", f"at:c{n % 3}"]
        Builder(self.ledger, f"b{n % 2}", self.name, UNLIMITED).update(
            fields, lambda _: dict.fromkeys(fields[: 1 + n % 2], "p" * (1 + size))
        )

    def clear_session(self, n: int, size: int) -> None:
        Sessions(self.ledger, self.name).clear(f"s{n % 2}")

    def one_run(self, n: int) -> str | None:
        runs = [run_id for run_id in self.runs if self.redis.exists(run_key(None, run_id))]
        return runs[n % len(runs)] if runs else None

    def shard(self, name: str) -> str:
        return shard_key(None, shard_of(name))

    def delete(self, pattern: str) -> None:
        """Delete keys, as Redis does when they expire."""
        if found := [*self.redis.scan_iter(match=pattern, count=10_000)]:
            self.redis.delete(*found)

    def counted(self) -> int:
        return self.ledger.quotas._used(self.name, UNLIMITED, "kept_bytes")["kept_bytes"]

    def check(self) -> None:
        """What is counted is the sum of what is counted for each thing, and each thing takes about as much."""
        runs, items = self.run_bytes(), self.item_bytes()
        before = -1
        while before != self.counted():  # memories may end meanwhile
            before, memory = self.counted(), int(self.redis.hget(f"{memory_key(None, self.name)}:kept", "bytes") or 0)
            own = measure(self.redis, f"{memory_key(None, self.name)}*")
        posts = self.outbox_bytes()
        bytes_of = {thing: counted for thing, (counted, _) in runs.items()} | items
        assert sum(bytes_of.values()) + posts + memory == before, (
            f"{bytes_of}, {memory} of memories, {posts} to be posted"
        )

        own = {key: sizes for key, sizes in own.items() if ":replies:" not in key}
        compare("memory", memory + SHARED, own.values())
        found: dict[str, list[tuple[int, int]]] = {thing.removesuffix(":log"): [] for thing in bytes_of}
        for key, sizes in measure(self.redis, "cantata:{[0-9]*").items():
            parts = key.split(":")[2:]
            owners = (":".join(parts[:end]) for end in range(len(parts), 1, -1))
            if owner := next((each for each in owners if each in found), None):
                found[owner].append(sizes)
        for thing, (counted, steps) in runs.items():
            compare(thing, counted, found[thing], beside_texts=RUN_BYTES + STEP_BYTES * steps)
        for item, counted in items.items():
            compare(item, counted, found[item.removesuffix(":log")], beside_texts=ITEM_BYTES)

    def item_bytes(self) -> dict[str, int]:
        """Return what is counted for each thing beside runs."""
        items = [each for key in self.keys("items") for each in cast("dict[str, str]", self.redis.hgetall(key)).items()]
        return {item: int(text.split(" ", 1)[0]) for item, text in items if text.split(" ", 1)[1] == self.name}

    def run_bytes(self) -> dict[str, tuple[int, int]]:
        """Return what is counted for each run, and the number of its steps."""
        runs = [run_id for key in self.keys("runs") for run_id in cast("list[str]", self.redis.zrange(key, 0, -1))]
        found = {
            run_id: cast("list[str]", self.redis.hmget(run_key(None, run_id), ["tenant", "bytes", "count"]))
            for run_id in runs
        }
        return {
            f"run:{run_id}": (int(size or 0), int(count or 0))
            for run_id, (tenant, size, count) in found.items()
            if tenant == self.name
        }

    def outbox_bytes(self) -> int:
        """Return what is counted for events that are still to be posted."""
        texts = [
            text
            for key in self.keys(f"outbox:{self.name}")
            for text in cast("list[str]", self.redis.lrange(key, 0, -1))
        ]
        return sum(len(text.split(" ", 2)[2].encode()) for text in texts)

    def keys(self, name: str) -> list[str]:
        return [
            key for shard in shards_in_use(self.redis) if self.redis.exists(key := f"{shard_key(None, shard)}:{name}")
        ]

    def cancel_all(self) -> None:
        for shard in shards_in_use(self.redis):
            for run_id in map(str, self.redis.zrange(f"{shard_key(None, shard)}:runs", 0, -1)):
                if run_id.startswith(f"{self.prefix}-") and self.redis.exists(run_key(None, run_id)):
                    self.ledger.runs.cancel(run_id)

    def leave(self) -> None:
        """End and delete all, or have it expire."""
        self.cancel_all()
        while self.ledger.outbox.due(range(SHARDS)):
            self.post(0, 0)
        self.cancel_all()
        sweep(self.ledger)
        for shard in shards_in_use(self.redis):
            key = shard_key(None, shard)
            for scope in self.redis.zrange(f"{key}:schedules", 0, -1):
                self.schedules.delete(str(scope))
        for batch in self.batches.newest():
            self.batches.change(batch.name, "cancel")
        self.bank.clear_memories()
        for session in ("s0", "s1", "s2"):
            self.bank.of(session=session).clear_memories()
            for n in range(4):
                self.bank.of(session=session).keep_for(f"n{n}", None)
                self.bank.keep_for(f"n{n}", None)
        self.delete(f"cantata:*:{self.prefix}/*")
        self.delete(f"cantata:*:run:{self.prefix}-*")


def measure(redis: Redis, pattern: str) -> dict[str, tuple[int, int]]:
    """Return of each key its bytes, and those of the large texts in it."""
    keys = [str(key) for key in redis.scan_iter(match=pattern, count=10_000)]
    sizes = ask_each(redis, keys, lambda pipe, key: pipe.memory_usage(key, samples=0))
    kinds = ask_each(redis, keys, lambda pipe, key: pipe.type(key))
    reads = {"hash": "HVALS", "list": "LRANGE", "stream": "XRANGE", "string": "STRLEN"}
    ends = {"list": ("0", "-1"), "stream": ("-", "+")}
    large = [
        (key, kind) for key, size, kind in zip(keys, sizes, kinds, strict=True) if kind in reads and (size or 0) > LARGE
    ]
    values = ask_each(
        redis, large, lambda pipe, each: pipe.execute_command(reads[each[1]], each[0], *ends.get(each[1], ()))
    )
    texts = {
        key: sum(size for size in sizes_in(value) if size > LARGE)
        for (key, _), value in zip(large, values, strict=True)
    }
    return {key: (int(size or 0), texts.get(key, 0)) for key, size in zip(keys, sizes, strict=True)}


def sizes_in(reply: object) -> Iterator[int]:
    """Yield the sizes of the texts in a reply."""
    if isinstance(reply, int):
        yield reply
    elif isinstance(reply, str):
        yield len(reply.encode())
    elif isinstance(reply, dict):
        yield from sizes_in([*reply.values()])
    elif isinstance(reply, list | tuple):
        for each in reply:
            yield from sizes_in(each)


def compare(thing: str, counted: int, keys: Collection[tuple[int, int]], *, beside_texts: int = 0) -> None:
    """Compare what is counted for a thing with the bytes of its keys, and with those of their large texts."""
    taken, texts = sum(size for size, _ in keys), sum(size for _, size in keys)
    found = (
        f"{thing} takes {taken:,} bytes in {len(keys)} keys, {texts:,} of them large texts, and {counted:,} are counted"
    )
    assert taken <= FACTOR * counted, found
    assert counted <= MOST_COUNTED * taken + KEY * max(len(keys), 1), found
    assert texts <= counted - beside_texts, found
    assert keys or thing == "memory", found


OPERATIONS = [
    Tenant.accept, Tenant.accept, Tenant.work, Tenant.work, Tenant.work, Tenant.say, Tenant.signal, Tenant.signal, Tenant.cancel,
    Tenant.drop, Tenant.expire_run, Tenant.fork, Tenant.post, Tenant.schedule, Tenant.fire, Tenant.unschedule, Tenant.batch,
    Tenant.remember, Tenant.remember, Tenant.forget, Tenant.build, Tenant.clear_session,
]  # fmt: skip
OPERATION = st.tuples(
    st.sampled_from(OPERATIONS),
    st.sampled_from((0, 0, 0, 1)),
    st.integers(0, 1000),
    st.sampled_from((0, 10, 1000, 40_000)),
)


@pytest.fixture
def empty(valkey: Redis) -> Iterator[Ledger]:
    """A ledger in an empty Redis."""
    valkey.flushdb()
    yield Ledger(valkey)
    valkey.flushdb()


@pytest.mark.slow("many histories of all that two tenants can store, each measured in Redis")
@settings(
    examples(40),
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(OPERATION, min_size=80, max_size=160))
def test_what_keys_take_stays_near_what_is_counted(empty: Ledger, history: list[tuple[object, int, int, int]]) -> None:
    redis = empty.redis
    redis.flushdb()
    tenants = [Tenant(empty, name) for name in TENANTS]
    for act, who, n, size in history:
        cast("type[object]", act)(tenants[who], n, size)  # type: ignore[call-arg]

    sweep(empty)
    for tenant in tenants:
        tenant.check()

    for tenant in tenants:
        tenant.leave()
    for shard in shards_in_use(redis):
        key = shard_key(None, shard)
        for ends in ("finished", "item_ends"):
            for member in redis.zrange(f"{key}:{ends}", 0, -1):
                redis.zadd(f"{key}:{ends}", {str(member): 1})
        empty.leases.sweep(shard)
    left = {key: redis.hgetall(key) for key in _counts(redis)}
    assert not left, f"nothing is left, and yet this is counted: {left}"
    until(lambda: all(tenant.counted() == 0 for tenant in tenants), "the end of the memories")


def test_a_session_that_keeps_no_message_is_not_counted(empty: Ledger) -> None:
    tenant = Tenant(empty, "acme")
    tenant.accept(3, 0)
    for _ in range(9):
        tenant.signal(1, 0)
        tenant.work(2, 0)

    assert [empty.runs.status(run_id) for run_id in tenant.runs] == ["succeeded"]
    assert tenant.item_bytes() == {}


def test_early_signals_are_gone_with_the_end_of_their_run_though_it_is_still_to_be_posted(empty: Ledger) -> None:
    tenant = Tenant(empty, "acme")
    tenant.accept(20, 0)
    tenant.signal(1, 1000)

    tenant.cancel(0, 0)

    assert tenant.outbox_bytes() > 0
    tenant.check()


def sweep(ledger: Ledger) -> None:
    """Sweep until no ended run has entries to be removed, as workers do."""
    for shard in shards_in_use(ledger.redis):
        ledger.leases.sweep(shard)
        while ledger.redis.exists(f"{shard_key(None, shard)}:clearing"):
            ledger.leases.sweep(shard)


def shards_in_use(redis: Redis) -> list[int]:
    """Return the shards that have keys."""
    return sorted(
        {
            int(str(key).partition("{")[2].partition("}")[0])
            for key in redis.scan_iter(match="cantata:{[0-9]*", count=10_000)
        }
    )


def _counts(redis: Redis) -> list[str]:
    return [
        str(key)
        for key in redis.scan_iter(match="cantata:{*}:*", count=10_000)
        if str(key).rpartition(":")[2] in COUNTS
    ]
