"""The memory bank's promises: values by key, tenants and sessions apart, ends, writers at once, odd keys, limits, a Redis that restarts."""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from cantata.bounds import MAX_MEMORY_BYTES
from cantata.errors import ConfigError
from cantata.features.memory.memory_store import CONVERSATIONS, KEY_BYTES, NAMESPACE_BYTES, MemoryStore
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.ledger.scripts import Scripts
from cantata.operation.embedded.valkey import find_server
from cantata.values import JsonValue
from tests.waiting import until

CLOCK = "clock"
TEXT = st.text(st.characters(codec="utf-8"))
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)
AHEAD_MS = 3600_000
ODD = [
    "a\nb",
    "a:b",
    "{a}",
    "ключ",
    "日本",
    "🙂",
    " ",
    "a b",
    "'",
    '"',
    "*",
    "\x00",
    "%3A",
    "../..",
    "-",
    "*" * KEY_BYTES,
]


@pytest.fixture
def bank(valkey: Redis) -> MemoryStore:
    """An empty bank."""
    valkey.flushdb()
    return MemoryStore(Ledger(valkey))


class Clock(Scripts):
    """Scripts that go by a clock of ours, which is ahead of Redis's: so nothing expires by itself."""

    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis = redis
        self._now_ms = int(time.time() * 1000) + AHEAD_MS
        self.sleep(0)

    def text(self, name: str) -> str:
        text = super().text(name)
        assert text.count("redis.call('TIME')") == 1
        return text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK}', 0, 1)")

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self._now_ms += round(seconds * 1000)
        with self._redis.pipeline() as pipe:
            pipe.delete(CLOCK)
            pipe.rpush(CLOCK, self._now_ms // 1000, self._now_ms % 1000 * 1000)
            pipe.execute()


@pytest.fixture
def clock(bank: MemoryStore, valkey: Redis) -> Clock:
    """The clock that the bank goes by."""
    clock = Clock(valkey)
    bank._scripts = clock
    return clock


# As documented


def test_what_is_stored_is_found_by_its_key_and_namespace(bank: MemoryStore) -> None:
    bank.store_memory("name", "Ann")
    bank.store_memory("name", "the other Ann", namespace="others")

    assert bank.retrieve_memory("name") == "Ann"
    assert bank.retrieve_memory("name", "others") == "the other Ann"
    assert bank.retrieve_memory("age") is None
    assert bank.retrieve_memory("age", default=42) == 42
    assert bank.memory_exists("name")
    assert not bank.memory_exists("age")
    assert not bank.memory_exists("name", "nowhere")
    assert bank.namespaces() == ["default", "others"]


def test_null_is_a_value(bank: MemoryStore) -> None:
    bank.store_memory("nothing", None)

    assert bank.memory_exists("nothing")
    assert bank.retrieve_memory("nothing", default="a default") is None


def test_keys_are_listed_sorted_and_a_value_is_replaced(bank: MemoryStore) -> None:
    for key in "cab":
        bank.store_memory(key, 1)
    bank.store_memory("a", {"new": True})

    assert bank.list_memories() == ["a", "b", "c"]
    assert bank.list_memories("nowhere") == []
    assert bank.retrieve_memory("a") == {"new": True}


def test_a_namespace_is_cleared_or_all_of_them(bank: MemoryStore) -> None:
    for namespace in ("one", "two", "three"):
        bank.store_memory("a", 1, namespace)
        bank.store_memory("b", 2, namespace)

    assert bank.clear_memories("one") == 2
    assert bank.clear_memories("one") == 0
    assert bank.namespaces() == ["three", "two"]
    assert bank.clear_memories() == 4
    assert bank.namespaces() == []
    assert not bank.memory_exists("a", "two")


@given(value=JSON)
def test_any_json_comes_back_as_it_was(valkey: Redis, value: JsonValue) -> None:
    bank = MemoryStore(Ledger(valkey))

    bank.store_memory("it", value, "any")

    assert bank.retrieve_memory("it", "any") == value
    assert bank.update("it", lambda known: [known], "any") == [value]
    assert bank.append("it", value, "any") == 2
    assert bank.retrieve_memory("it", "any") == [value, value]


# Keys


@pytest.mark.parametrize("odd", ODD)
def test_odd_keys_namespaces_tenants_and_sessions_are_kept_apart(bank: MemoryStore, valkey: Redis, odd: str) -> None:
    short = odd[: NAMESPACE_BYTES // 4]
    session = odd[:100] if odd.isprintable() and odd.strip() else "s"
    scope = bank.of(tenant=short, session=session)

    scope.store_memory(odd, odd, short)
    scope.append("list", odd, short)

    assert scope.retrieve_memory(odd, short) == odd
    assert scope.list_memories(short) == sorted(["list", odd])
    assert scope.namespaces() == [short]
    assert bank.namespaces() == bank.of(tenant=short).namespaces() == []
    assert len({key.partition("{")[2].partition("}")[0] for key in cast("list[str]", valkey.keys("*"))}) == 1, (
        "in one slot"
    )
    assert scope.clear_memories() == 2


@given(keys=st.sets(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), max_size=8))
def test_keys_that_differ_are_different(valkey: Redis, keys: set[str]) -> None:
    valkey.flushdb()
    bank = MemoryStore(Ledger(valkey))

    for key in keys:
        bank.store_memory(key, key, key)

    assert bank.namespaces() == sorted(keys)
    assert all(bank.list_memories(key) == [key] and bank.retrieve_memory(key, key) == key for key in keys)


# Whose it is


def test_a_tenant_never_sees_anothers(bank: MemoryStore) -> None:
    ann, bob = bank.of(tenant="ann"), bank.of(tenant="bob")

    for each in (bank, ann, bob):
        each.store_memory("whose", each.tenant)
    ann.append("list", 1)

    assert [each.retrieve_memory("whose") for each in (bank, ann, bob)] == ["", "ann", "bob"]
    assert bob.list_memories() == ["whose"]
    assert bob.clear_memories() == 1
    assert ann.list_memories() == ["list", "whose"]
    assert bank.clear_memories() == 1
    assert ann.list_memories() == ["list", "whose"]


def test_a_bank_of_a_tenant_does_not_lead_to_another(bank: MemoryStore) -> None:
    with pytest.raises(ConfigError, match="memory of tenant 'ann', which cannot open that of 'bob'"):
        bank.of(tenant="ann").of(tenant="bob")

    assert bank.of(tenant="ann").of(session="s").tenant == "ann"


def test_a_session_has_memories_of_its_own(bank: MemoryStore) -> None:
    tenant = bank.of(tenant="ann")
    one, two = tenant.of(session="1"), tenant.of(session="2")

    tenant.store_memory("a", "all")
    one.store_memory("a", "one")

    assert [each.retrieve_memory("a") for each in (tenant, one, two)] == ["all", "one", None]
    assert tenant.clear_memories() == 1
    assert one.retrieve_memory("a") == "one"
    assert one.of().session is None, "back to the tenant"


def test_what_a_session_does_not_know_its_tenant_may(bank: MemoryStore) -> None:
    session = bank.of(session="s")
    bank.store_memory("a", "tenant's")
    bank.store_memory("b", "tenant's")
    session.store_memory("a", "session's")

    wanted = [("default", name) for name in "abca"]

    assert session.retrieve_each(wanted) == {("default", "a"): "session's", ("default", "b"): "tenant's"}
    assert bank.retrieve_each(wanted) == {("default", "a"): "tenant's", ("default", "b"): "tenant's"}
    assert bank.retrieve_each([]) == {}


# Time


def test_a_memory_ends_for_every_reader_when_its_time_is_over(bank: MemoryStore, clock: Clock) -> None:
    bank.store_memory("short", [1], ttl_s=10)
    bank.store_memory("long", 1, ttl_s=20)
    bank.store_memory("for good", 1)
    bank.store_memory("alone", 1, "other", ttl_s=10)
    clock.sleep(9.999)

    assert bank.list_memories() == ["for good", "long", "short"]
    assert bank.namespaces() == ["default", "other"]
    clock.sleep(0.001)

    assert bank.list_memories() == ["for good", "long"]
    assert bank.retrieve_memory("short", default="gone") == "gone"
    assert not bank.memory_exists("short")
    assert bank.retrieve_each([("default", "short")]) == {}
    assert bank.namespaces() == ["default"]
    assert bank.append("short", 2) == 1, "it begins anew"
    assert bank.update("alone", lambda value: value, "other") is None
    assert bank.clear_memories() == 4


def test_a_new_value_has_a_time_of_its_own(bank: MemoryStore, clock: Clock) -> None:
    bank.store_memory("a", 1, ttl_s=10)
    bank.store_memory("a", 2)
    bank.store_memory("b", 1)
    bank.store_memory("b", 2, ttl_s=10)
    clock.sleep(10)

    assert bank.list_memories() == ["a"]


def test_append_and_update_leave_the_time_as_it_is(bank: MemoryStore, clock: Clock) -> None:
    bank.store_memory("list", [1], ttl_s=10)
    bank.store_memory("number", 1, ttl_s=10)
    clock.sleep(5)
    bank.append("list", 2)
    bank.update("number", lambda value: value + 1)
    clock.sleep(5)

    assert bank.list_memories() == []


def test_a_namespace_may_say_how_long_its_memories_live(bank: MemoryStore, clock: Clock) -> None:
    bank.store_memory("before", 1)
    bank.keep_for("default", 10)
    bank.store_memory("usual", 1)
    bank.store_memory("longer", 1, ttl_s=20)
    bank.append("list", 1)
    bank.update("new", lambda value: 1)
    bank.update("before", lambda value: 2)
    clock.sleep(10)

    assert bank.list_memories() == ["before", "longer"]

    bank.keep_for("default", None)
    bank.store_memory("for good", 1)
    clock.sleep(1000)
    assert bank.list_memories() == ["before", "for good"]


def test_what_ended_is_removed_by_later_writes(bank: MemoryStore, clock: Clock, valkey: Redis) -> None:
    for number in range(250):
        bank.store_memory(f"{number}", number, ttl_s=1)
    clock.sleep(1)
    for _ in range(3):
        bank.store_memory("for good", 1)

    assert valkey.hkeys("cantata:{memory:}:values:default") == ["for good"]
    assert valkey.zcard("cantata:{memory:}:ends:default") == 0


def test_redis_itself_removes_a_namespace_in_which_all_ends(bank: MemoryStore, valkey: Redis) -> None:
    bank.store_memory("a", 1, ttl_s=0.05)
    bank.append("stays", 1, "other")

    until(
        lambda: not valkey.exists("cantata:{memory:}:values:default", "cantata:{memory:}:ends:default"),
        "the end of what was kept",
    )

    assert bank.namespaces() == ["other"]
    assert bank.clear_memories() == 1
    bank.store_memory("a", 1, ttl_s=0.05)
    until(
        lambda: not [key for key in cast("list[str]", valkey.keys("*")) if ":replies:" not in key],
        "the end of all of it",
    )
    assert all(0 < valkey.pttl(key) <= 120_000 for key in cast("list[str]", valkey.keys("*")))


def test_a_memory_that_stays_keeps_its_namespace(bank: MemoryStore, valkey: Redis) -> None:
    bank.store_memory("a", 1, ttl_s=100)
    assert valkey.pttl("cantata:{memory:}:values:default") > 0

    bank.store_memory("b", 1)

    assert [
        valkey.pttl(f"cantata:{{memory:}}:{part}") for part in ("values:default", "ends:default", "namespaces")
    ] == [-1, -1, -1]


@pytest.mark.parametrize("ttl_s", [0, -1, math.nan, math.inf, 1e12, "60"])
def test_a_time_that_is_none_is_refused(bank: MemoryStore, ttl_s: Any) -> None:
    with pytest.raises(ConfigError, match="'ttl_s' is a number of seconds above 0"):
        bank.store_memory("a", 1, ttl_s=ttl_s)


# Writers at once


def test_twenty_writers_at_once_lose_nothing(bank: MemoryStore) -> None:
    def write(writer: int) -> list[int]:
        return [bank.append("list", [writer, number]) for number in range(50)]

    with ThreadPoolExecutor(20) as threads:
        lengths = [length for lengths in threads.map(write, range(20)) for length in lengths]

    assert sorted(lengths) == list(range(1, 1001))
    found = cast("list[list[int]]", bank.retrieve_memory("list"))
    for writer in range(20):
        assert [number for each, number in found if each == writer] == list(range(50)), "each writer's order is kept"


def test_updates_at_once_are_all_done_though_each_may_be_tried_again(bank: MemoryStore) -> None:
    def count(_: int) -> None:
        for _ in range(10):
            bank.update("count", lambda value: (value or 0) + 1)

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(count, range(20)))

    assert bank.retrieve_memory("count") == 200


def test_an_update_sees_that_a_value_went_and_came_back(bank: MemoryStore) -> None:
    bank.store_memory("a", "old")
    seen: list[JsonValue] = []

    def change(value: JsonValue) -> JsonValue:
        seen.append(value)
        if len(seen) == 1:
            bank.clear_memories()
            bank.store_memory("a", "old")
        return f"{value}, changed"

    assert bank.update("a", change) == "old, changed"
    assert seen == ["old", "old"]


def test_an_update_whose_function_raises_changes_nothing(bank: MemoryStore) -> None:
    bank.store_memory("a", [1])

    with pytest.raises(TypeError):
        bank.update("a", lambda value: value + 1)

    assert bank.retrieve_memory("a") == [1]


class Forgetful(Redis):
    """A Redis whose every second reply is lost."""

    calls = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        self.calls += 1
        if self.calls % 2:
            raise RedisConnectionError("the reply was lost")
        return reply


def test_a_write_whose_reply_is_lost_is_done_once(bank: MemoryStore, valkey: Redis) -> None:
    pool = valkey.connection_pool
    hurried = MemoryStore(Ledger(Forgetful(connection_pool=pool)))
    bank.append("warm", 0)

    assert [hurried.append("list", number) for number in range(5)] == [1, 2, 3, 4, 5]
    for _ in range(5):
        hurried.update("count", lambda value: (value or 0) + 1)

    assert bank.retrieve_memory("list") == [0, 1, 2, 3, 4]
    assert bank.retrieve_memory("count") == 5


# Limits


def test_what_is_too_long_or_too_large_is_refused_with_the_limit(bank: MemoryStore) -> None:
    bank.store_memory("k" * KEY_BYTES, "v" * (MAX_MEMORY_BYTES - 2), "n" * NAMESPACE_BYTES)

    with pytest.raises(ConfigError, match=r"the key 'äää.*'… has 1,026 bytes; at most 1,024 are allowed; shorten it"):
        bank.store_memory("ä" * 513, 1)
    with pytest.raises(ConfigError, match=r"the namespace 'nnn.*'… has 257 bytes; at most 256 are allowed"):
        bank.retrieve_memory("a", "n" * 257)
    with pytest.raises(
        ConfigError,
        match=r"the value of 'a' would have 1,000,001 bytes as JSON; at most 1,000,000 are allowed; keep it elsewhere",
    ):
        bank.store_memory("a", "v" * (MAX_MEMORY_BYTES - 1))
    with pytest.raises(ConfigError, match="at most 1,000,000 are allowed"):
        bank.update("a", lambda value: "ä" * (MAX_MEMORY_BYTES // 2))

    assert not bank.memory_exists("a")


def test_a_list_grows_to_the_limit_and_no_further(bank: MemoryStore) -> None:
    bank.store_memory("list", ["v" * (MAX_MEMORY_BYTES - 10)])

    assert bank.append("list", 1) == 2
    with pytest.raises(ConfigError, match=r"the value of 'list' would have 1,000,\d+ bytes"):
        bank.append("list", "too much")

    assert len(cast("list[str]", bank.retrieve_memory("list"))) == 2


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("text", "a text"),
        ({}, "an object"),
        (1, "a number"),
        (-0.5, "a number"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
    ],
)
def test_only_lists_can_be_appended_to(bank: MemoryStore, value: JsonValue, what: str) -> None:
    bank.store_memory("a", value, "notes")

    with pytest.raises(ConfigError, match=f"'a' in 'notes' holds {what}, and only lists can be appended to"):
        bank.append("a", 1, "notes")

    assert bank.retrieve_memory("a", "notes") == value


def test_an_empty_list_can_be_appended_to(bank: MemoryStore) -> None:
    bank.store_memory("a", [])

    assert bank.append("a", [[]]) == 1
    assert bank.retrieve_memory("a") == [[[]]]


@pytest.mark.parametrize("value", [object(), {1, 2}, math.nan, "\ud800", {"a": b""}])
def test_what_is_no_json_is_refused(bank: MemoryStore, value: Any) -> None:
    with pytest.raises(ConfigError, match="the value of 'a' is no JSON"):
        bank.store_memory("a", value)


@pytest.mark.parametrize("key", ["", None, 5, "\ud800"])
def test_a_key_that_is_none_is_refused(bank: MemoryStore, key: Any) -> None:
    with pytest.raises(ConfigError, match=r"memory: (a|the) key "):
        bank.store_memory(key, 1)
    with pytest.raises(ConfigError, match=r"memory: (a|the) namespace "):
        bank.store_memory("a", 1, key)


def test_a_session_or_tenant_that_cannot_be_one_is_refused(bank: MemoryStore) -> None:
    with pytest.raises(ConfigError, match="the session's name is empty"):
        bank.of(session="")
    with pytest.raises(ConfigError, match=r"the tenant .* is no text in Unicode"):
        bank.of(tenant="\ud800")


# Conversations


def test_conversations_cannot_be_written(bank: MemoryStore) -> None:
    writes: list[Callable[[], object]] = [
        lambda: bank.store_memory("s", 1, CONVERSATIONS),
        lambda: bank.append("s", 1, CONVERSATIONS),
        lambda: bank.update("s", lambda value: 1, CONVERSATIONS),
        lambda: bank.clear_memories(CONVERSATIONS),
        lambda: bank.keep_for(CONVERSATIONS, 1),
    ]
    for write in writes:
        with pytest.raises(ConfigError, match="'conversations' holds the conversations of sessions and is read-only"):
            write()

    assert bank.list_memories(CONVERSATIONS) == []
    assert bank.retrieve_memory("s", CONVERSATIONS, default="nothing was said") == "nothing was said"
    assert not bank.memory_exists("s", CONVERSATIONS)


# A Redis that restarts


class Server:
    """A Valkey of our own that can be killed and started again."""

    def __init__(self, folder: str) -> None:
        self.url = f"unix://{folder}/s"
        self._words = [find_server(), "--port", "0", "--unixsocket", f"{folder}/s", "--dir", folder]
        self._words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL)
        with closing(connect(self.url)) as client:
            until(lambda: _answers(client), "Redis")

    def kill(self) -> None:
        """End it at once."""
        if self._process:
            self._process.kill()
            self._process.wait()


def _answers(client: Redis) -> bool:
    try:
        client.ping()
    except RedisError:
        return False
    return True


@contextmanager
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ca", dir="/tmp") as folder:
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def test_nothing_is_lost_or_done_twice_when_redis_is_killed_and_started_again() -> None:
    with server() as redis, closing(connect(redis.url)) as client:
        bank = MemoryStore(Ledger(client))
        bank.store_memory("name", "Ann")

        def write(writer: int) -> None:
            for number in range(100):
                bank.append("list", [writer, number])
                bank.update("count", lambda value: (value or 0) + 1)

        with ThreadPoolExecutor(5) as threads:
            done = [threads.submit(write, writer) for writer in range(5)]
            for share in (50, 150):
                until(lambda share=share: (bank.retrieve_memory("count") or 0) >= share, "the share")  # type: ignore[misc]
                redis.kill()
                redis.start()
            for each in done:
                each.result()

        assert sorted(cast("list[list[int]]", bank.retrieve_memory("list"))) == [
            [i, n] for i in range(5) for n in range(100)
        ]
        assert bank.retrieve_memory("count") == 500
        assert bank.retrieve_memory("name") == "Ann"
