"""What the run pages wait for: lists of 100,000 runs, graphs of large runs."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from cantata.client.client import EmbeddedClient
from cantata.client.graphs.run_pages import RunPages
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import Redis, connect
from cantata.ledger.runs.listing import RunFilter, find_page
from tests.bench.measure import database, run_once
from tests.bench.shapes import long_shape, wide_shape

TIMES = 20
TENANTS = 10
RARE = 5000  # one run of so many is cancelled
SLOW_US = 1000  # calls that take longer are looked at

TURN = '{{"text":"please look at order {number} and write a letter to customer {customer}, kind regards"}}'
CHAIN = '{{"chain_id":"report-{customer}","nodes":[{{"node_id":"price","kind":"tool","name":"price_of"}}],"entry_node":"price"}}'


@dataclass(frozen=True)
class Wait:
    """How long something took, each time."""

    what: str
    samples_ms: list[float]
    slowest_call_ms: float | None = None
    """The slowest single call of Redis, where that was watched."""


def measure_pages(client: EmbeddedClient, *, runs: int) -> list[Wait]:
    """Lists in a database without workers, then graphs of runs that were done."""
    redis = connect(database(client.redis_url, 1))
    try:
        lists = list(_lists(Ledger(redis), redis, runs))
    finally:
        redis.flushdb()
        redis.close()
    return [*lists, *_graphs(client)]


def _lists(ledger: Ledger, redis: Redis, runs: int) -> Iterator[Wait]:
    _accept(ledger, runs)
    firsts = {
        "first page": RunFilter(), "of a tenant": RunFilter("tenant-3"), "of a kind": RunFilter(kind="chain"),
        "cancelled": RunFilter(statuses=("cancelled",)),
    }  # fmt: skip
    for name, wanted in firsts.items():
        yield Wait(f"{runs:,} runs, {name}", [_took_ms(partial(find_page, ledger, wanted)) for _ in range(TIMES)])
    redis.config_set("slowlog-log-slower-than", SLOW_US)
    for name, wanted in {
        "all cancelled": RunFilter(statuses=("cancelled",)),
        "a text that is nowhere": RunFilter(text="order zero"),
    }.items():
        redis.slowlog_reset()
        took_ms = _took_ms(partial(_walk, ledger, wanted))
        slowest_us = max((each["duration"] for each in redis.slowlog_get(128)), default=SLOW_US)
        yield Wait(f"{runs:,} runs to the end, {name}", [took_ms], slowest_us / 1000)


def _accept(ledger: Ledger, runs: int) -> None:
    """Take runs in as a client does; nobody works on them."""
    chance = random.Random(1)
    for number in range(runs):
        run_id = f"{int(time.time() * 1000):011x}{chance.getrandbits(32):08x}"
        kind, request = ("chain", CHAIN) if number % 3 == 0 else ("turn", TURN)
        ledger.runs.accept(
            run_id,
            kind=kind,
            request=request.format(number=number, customer=number % 977),
            definitions="{}",
            timeout_s=3600,
            max_attempts=3,
            max_steps=1000,
            labels={"tenant": f"tenant-{number % TENANTS}"},
        )
        if number % RARE == 0:
            ledger.runs.cancel(run_id)
            sys.stderr.write(f"{number:,} runs are taken in\n")


def _walk(ledger: Ledger, wanted: RunFilter) -> None:
    page = find_page(ledger, wanted)
    while page.next is not None:
        page = find_page(ledger, wanted, before=page.next)


def _graphs(client: EmbeddedClient) -> Iterator[Wait]:
    for shape in (long_shape(1000), wide_shape(10_000)):
        _, run_id = run_once(client, shape, "noop")

        yield Wait(
            f"{shape.name}, its graph",
            [_took_ms(partial(_graph, RunPages(client.engine), run_id)) for _ in range(TIMES)],
        )
        pages = RunPages(client.engine)
        _graph(pages, run_id)
        yield Wait(f"{shape.name}, its graph again", [_took_ms(partial(_graph, pages, run_id)) for _ in range(TIMES)])


def _graph(pages: RunPages, run_id: str) -> str:
    return pages.graph(None, run_id).model_dump_json()


def _took_ms(call: Callable[[], object]) -> float:
    since = time.perf_counter()
    call()
    return (time.perf_counter() - since) * 1000
