"""What an item of a map costs Redis while it works as an agent with a tool: it asks for the tool, the tool answers, it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from redis import Redis

from cantata.flows.graph import Graph, ItemSteps
from cantata.ledger.ledger import Ledger
from tests.integration.state.play import Play, row, work
from tests.waiting import until

NARROW, WIDE = 100, 10_000
BATCH = 100  # items that are measured at once: all of a narrow map, and the next of the wide one
BATCHES = 7  # of either, in turns; the best counts
TARGET = 1.2
QUEUE = "nobody"  # what is sent is begun here; no worker is asked


@dataclass(frozen=True)
class ItemCost:
    """What one item of a map costs."""

    width: int
    redis_us: float
    """Processor time of Redis."""
    written_bytes: float
    """Written to its append-only file."""


def measure_expansions(redis: Redis) -> list[ItemCost]:
    """Measure an item of a narrow map and one of a wide map, in an empty database that nobody sweeps."""
    ledger = Ledger(redis)
    narrow, wide = [], []
    with _without_rewrites(redis):
        large, first = _map(ledger, "wide", WIDE), WIDE - BATCHES * BATCH
        for n in range(first):
            _work_off(large, f"map/{n}")
        for number in range(BATCHES):
            narrow.append(_batch(redis, _map(ledger, f"narrow-{number}", NARROW), 0))
            wide.append(_batch(redis, large, first + number * BATCH))
    return [ItemCost(NARROW, *map(min, zip(*narrow, strict=True))), ItemCost(WIDE, *map(min, zip(*wide, strict=True)))]


def _map(ledger: Ledger, run_id: str, width: int) -> Play:
    """A run with a map all of whose items are sent."""
    play = Play(ledger, run_id, timeout_s=3600)
    items = ItemSteps(like="map/item", prefix="map", given=tuple(range(width)), window=width)
    like, gather = work("map/item", queue=QUEUE, window="map", scope="map"), work("map/gather", queue=QUEUE)
    play.plan(work("map", queue=QUEUE))
    play.do("map", fragment=Graph(steps=(like, gather), edges=row(like.id, gather.id), items=items, exit=gather.id))
    return play


def _batch(redis: Redis, play: Play, start: int) -> tuple[float, float]:
    """What an item takes of some items: µs, bytes."""
    us, written = _busy_us(redis), _written(redis)
    for n in range(start, start + BATCH):
        _work_off(play, f"map/{n}")
    return (_busy_us(redis) - us) / BATCH, (_written(redis) - written) / BATCH


def _work_off(play: Play, item: str) -> None:
    tool, turn = f"{item}.t1", f"{item}.r1"
    steps = work(tool, queue=QUEUE, scope=item), work(turn, queue=QUEUE, scope="map", window="map")
    play.do(item, "call", fragment=Graph(steps=steps, edges=row(tool, turn), exit=turn))
    play.do(tool, "found")
    play.do(turn, "said")


@contextmanager
def _without_rewrites(redis: Redis) -> Iterator[None]:
    """A rewrite would make the file shorter while it is measured."""
    name = "auto-aof-rewrite-percentage"
    before = str(redis.config_get(name)[name])
    redis.config_set(name, 0)
    try:
        yield
    finally:
        redis.config_set(name, before)


def _busy_us(redis: Redis) -> float:
    """Processor time of the thread that does all commands: what other programs take of the machine is not in it."""
    info = redis.info("cpu")
    return 1e6 * (float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"]))


def _written(redis: Redis) -> int:
    until(lambda: redis.info("persistence")["aof_buffer_length"] == 0, "the log's buffer on disk")
    return int(redis.info("persistence")["aof_current_size"])


def verdict(costs: Sequence[ItemCost]) -> str:
    """Whether an item costs the same in a wide map."""
    narrow, wide = costs[0], costs[-1]
    us, written = wide.redis_us / narrow.redis_us, wide.written_bytes / narrow.written_bytes
    met = "met" if max(us, written) <= TARGET else "missed"
    return f"an item of {wide.width:,} against one of {narrow.width:,}: time {us:.2f}, bytes {written:.2f} (target {TARGET}: {met})"
