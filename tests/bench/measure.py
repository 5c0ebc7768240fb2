"""Times the shapes on Cantata and on plain Celery, both on one embedded stack."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from cantata.client.client import Client, EmbeddedClient
from cantata.flows.definitions import Defaults, Definitions, Limits, Tool
from cantata.ledger.redis.connection import connect, redis_url
from cantata.values import JsonValue
from tests.bench.shapes import Shape

HERE = Path(__file__).parent
PROCESSES = 2  # prefork processes of either worker
PATIENCE_S = 300.0
WARM_UP_S = 3.0  # workers learn within two seconds what work costs
SLOW_MS = 20_000.0  # what takes longer is measured once
TOOLS = {"ahead": "noop", "pure": "noop_pure", "own task": "noop_task"}
WAYS = (*TOOLS, "plain")


@dataclass
class Samples:
    """What one way of running one shape took."""

    ms: list[float] = field(default_factory=list)
    net_bytes: list[int] = field(default_factory=list)
    kept_bytes: int | None = None

    @property
    def median_ms(self) -> float:
        """The middle one."""
        return statistics.median(self.ms)


@contextmanager
def stack(defaults: Defaults | None = None, *, agents: int = 0) -> Iterator[EmbeddedClient]:
    """A stack of its own for one measurement, with the bench's tools; an agents worker would load LiteLLM during the first seconds."""
    os.environ |= {"PLAIN_BROKER": "memory://", "CANTATA_TASK_EVENTS": "0"}  # no events on either side
    definitions = Definitions(
        folder=str(HERE),
        tools={
            "noop": Tool(function="bench_tools:noop"),
            "noop_pure": Tool(function="bench_tools:noop", pure=True),
            "noop_task": Tool(function="bench_tools:noop", cheap=False),
            "nap": Tool(function="bench_tools:nap"),
        },
        defaults=defaults or Defaults(),
        limits=Limits(max_steps=200_000),
    )
    with (
        tempfile.TemporaryDirectory() as home,
        Client.embedded(home, config=definitions, agents=agents, tools=PROCESSES) as client,
    ):
        yield client


def database(url: str, number: int) -> str:
    """The address of another database of the embedded server."""
    return url.replace("virtual_host=0", f"virtual_host={number}")


@contextmanager
def plain_worker(url: str) -> Iterator[Any]:
    """The app of plain Celery, while a worker of it runs."""
    os.environ["PLAIN_BROKER"] = url
    from tests.bench import plain  # noqa: PLC0415  # its app reads the address when it is imported

    arguments = ["worker", "-P", "prefork", "-c", str(PROCESSES), "--without-gossip", "--without-mingle", "-l", "ERROR"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.bench.plain", *arguments], stdout=subprocess.DEVNULL
    )
    try:
        plain.noop.delay().get(timeout=30)
        yield plain.app
    finally:
        worker.terminate()
        worker.wait(15)


def measure_shapes(client: EmbeddedClient, app: Any, wanted: Sequence[Shape]) -> dict[str, dict[str, Samples]]:
    """Samples of each shape, each way."""
    plain = connect(redis_url(database(client.redis_url, 1)))
    results: dict[str, dict[str, Samples]] = {}
    for shape in wanted:
        samples = {way: _samples(client, app, shape, way) for way in WAYS if shape.fans_out or way != "pure"}
        plain.flushdb()
        results[shape.name] = samples
        sys.stderr.write(f"{shape.name}: {', '.join(f'{way} {samples[way].median_ms:.1f} ms' for way in samples)}\n")
    return results


def _samples(client: Client, app: Any, shape: Shape, way: str) -> Samples:
    samples = Samples()
    warm_at = time.monotonic() + WARM_UP_S
    while len(samples.ms) < shape.repeats:
        before = _net(client.redis)
        if way == "plain":
            took_ms, run_id = plain_ms(app, shape), ""
        else:
            took_ms, run_id = run_once(client, shape, TOOLS[way])
        if time.monotonic() > warm_at:
            samples.ms.append(took_ms)
            samples.net_bytes.append(_net(client.redis) - before)
        if run_id:
            samples.kept_bytes = kept_bytes(client.redis, run_id)
        if took_ms > SLOW_MS:
            break
    return samples


def run_once(client: Client, shape: Shape, tool: str) -> tuple[float, str]:
    """Run a shape on Cantata: the milliseconds it took, and the id of one of its runs."""
    request = request_of(shape, tool)
    since = time.perf_counter()
    runs = [client.submit_chain(request) for _ in range(shape.at_once)]
    for run in runs:
        run.wait(PATIENCE_S)
    took_ms = (time.perf_counter() - since) * 1000
    failed = [run.run_id for run in runs if run.status() != "succeeded"]
    if failed:
        raise SystemExit(f"{shape.name}: runs {failed[:3]} did not succeed: {runs[0].record().error}")
    return took_ms, runs[0].run_id


def request_of(shape: Shape, tool: str) -> Mapping[str, JsonValue]:
    """A shape as a chain request."""
    nodes = shape.nodes(tool)
    return {
        "nodes": list(nodes),
        "entry_node": nodes[0]["node_id"],
        "initial_input": shape.initial or {},
        "timeout": PATIENCE_S,
    }


def plain_ms(app: Any, shape: Shape) -> float:
    """Run a shape as a canvas of an application: the milliseconds it took."""
    since = time.perf_counter()
    canvases = [shape.canvas(lambda: app.tasks["noop"].si()) for _ in range(shape.at_once)]
    for result in [canvas.apply_async() for canvas in canvases]:
        result.get(timeout=PATIENCE_S)
    return (time.perf_counter() - since) * 1000


def _net(redis: Redis) -> int:
    stats = redis.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


def kept_bytes(redis: Redis, run_id: str) -> int:
    """What a run keeps in Redis."""
    return sum(int(redis.memory_usage(key, samples=0) or 0) for key in redis.scan_iter(f"*{run_id}*", count=10_000))
