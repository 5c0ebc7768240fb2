"""Whether workers and Redis stay the size they are, over many finished runs whose retention is over."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cantata.client.client import EmbeddedClient
from cantata.client.runs import ChainRun
from tests.bench.measure import PATIENCE_S, request_of
from tests.bench.shapes import long_shape

RETENTION_S = 2.0
EXPIRY_S = 15.0  # until Redis has let go of what expired
SAMPLES = 20
WARM_UP = 4  # samples that do not count: allocators and caches fill
AT_ONCE = 20
TARGET_PERCENT = 5.0


@dataclass(frozen=True)
class Size:
    """How much memory all hold at one moment, after `runs` runs."""

    runs: int
    bytes: Mapping[str, int]
    """process → its resident set; for 'redis' its used_memory"""
    keys_left: int
    """keys of runs that Redis still holds: 0 once all are forgotten"""


def measure_soak(client: EmbeddedClient, runs: int) -> list[Size]:
    """Let `runs` runs come and go, on a stack that keeps them for RETENTION_S; sizes at each twentieth."""
    request = request_of(long_shape(3), "noop")
    sizes = []
    for number in range(SAMPLES):
        under_way: deque[ChainRun] = deque()
        for _ in range(runs * number // SAMPLES, runs * (number + 1) // SAMPLES):
            if len(under_way) == AT_ONCE:
                under_way.popleft().wait(PATIENCE_S)
            under_way.append(client.submit_chain(request))
        for run in under_way:
            run.wait(PATIENCE_S)
        sizes.append(_size(client, runs * (number + 1) // SAMPLES))
        sys.stderr.write(
            f"{sizes[-1].runs} runs: {', '.join(f'{n} {b / 1e6:.2f} MB' for n, b in sizes[-1].bytes.items())}\n"
        )
    return sizes


def growth_percent(sizes: Sequence[Size]) -> dict[str, float]:
    """How much each has grown from the first sample that counts to the last."""
    first, last = sizes[WARM_UP].bytes, sizes[-1].bytes
    return {name: (last[name] / first[name] - 1) * 100 for name in first if name in last}


def _size(client: EmbeddedClient, runs: int) -> Size:
    time.sleep(RETENTION_S)
    give_up = time.monotonic() + EXPIRY_S
    while (left := _keys_left(client)) and time.monotonic() < give_up:
        time.sleep(0.2)
    sizes = {name: _resident(pid) for name, pid in _workers(client)}
    memory = client.redis.info("memory")
    buffers = int(memory["mem_clients_normal"])
    sizes |= {
        "redis": int(memory["used_memory"]),
        "redis, without its clients' buffers": int(memory["used_memory"]) - buffers,
    }
    return Size(runs, sizes, left)


def _keys_left(client: EmbeddedClient) -> int:
    return sum(1 for _ in client.redis.scan_iter("cantata:*:run:*", count=10_000))


def _workers(client: EmbeddedClient) -> Iterator[tuple[str, int]]:
    """The worker processes of the stack and their children. Reads /proc, so Linux only."""
    for process in client.stack.processes():
        if process.queues:
            yield process.name, process.pid
            for number, child in enumerate(
                Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split(), 1
            ):
                yield f"{process.name}/{number}", int(child)


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
