"""`./run bench [--quick] [--json FILE]`: one table, every row measured in this run against plain Celery with the same pools."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from orchestrator.client import Client
from orchestrator.models.definitions import Definitions, Limits, Tool
from orchestrator.models.values import JsonValue
from orchestrator.state.connection import connect, redis_url
from tests.bench.shapes import Shape, shapes

HERE = Path(__file__).parent
PROCESSES = 2  # prefork processes of either worker
PATIENCE_S = 300.0
WARM_UP_S = 3.0  # workers learn within two seconds what work costs
SLOW_MS = 20_000.0  # what takes longer is measured once
ROUNDS = ("ahead", "own task", "plain")


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


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out 10,000 wide")
    parser.add_argument("--json", metavar="FILE", help="write machine, versions and raw samples")
    parser.add_argument("--only", metavar="TEXT", help="only shapes whose name has this text")
    options = parser.parse_args()
    os.environ |= {"PLAIN_BROKER": "memory://", "CANTATA_TASK_EVENTS": "0"}  # no events on either side
    definitions = Definitions(
        folder=str(HERE),
        tools={"noop": Tool(function="bench_tools:noop"), "noop_task": Tool(function="bench_tools:noop", cheap=False)},
        limits=Limits(max_steps=200_000),
    )
    with tempfile.TemporaryDirectory() as home, Client.embedded(home, config=definitions, tools=PROCESSES) as client:
        url = client.redis_url.replace("virtual_host=0", "virtual_host=1")
        with _plain_worker(url) as app:
            results = _measure(client, app, connect(redis_url(url)), options)
    _print(results)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": _machine(), "results": _raw(results)}, indent=2))
    return 0


def _measure(client: Client, app: Any, plain: Redis, options: argparse.Namespace) -> dict[str, tuple[Shape, dict[str, Samples]]]:
    results: dict[str, tuple[Shape, dict[str, Samples]]] = {}
    for shape in shapes(app, quick=options.quick):
        if options.only and options.only not in shape.name:
            continue
        samples = {way: Samples() for way in ROUNDS}
        for way in ROUNDS:
            warm_at = time.monotonic() + WARM_UP_S
            while len(samples[way].ms) < shape.repeats:
                before = _net(client.redis)
                took_ms, run_id = _plain(app, shape) if way == "plain" else _ours(client, shape, "noop" if way == "ahead" else "noop_task")
                if time.monotonic() > warm_at:
                    samples[way].ms.append(took_ms)
                    samples[way].net_bytes.append(_net(client.redis) - before)
                if run_id:
                    samples[way].kept_bytes = _kept(client.redis, run_id)
                if took_ms > SLOW_MS:
                    break
        plain.flushdb()
        results[shape.name] = (shape, samples)
        sys.stderr.write(f"{shape.name}: {', '.join(f'{way} {samples[way].median_ms:.1f} ms' for way in ROUNDS)}\n")
    return results


def _ours(client: Client, shape: Shape, tool: str) -> tuple[float, str]:
    request: dict[str, JsonValue] = {"nodes": list(shape.nodes(tool)), "initial_input": shape.initial or {}, "timeout": PATIENCE_S}
    request["entry_node"] = "all" if shape.initial else ("s" if "→" in shape.name or "diamonds" in shape.name else "s0")
    since = time.perf_counter()
    runs = [client.submit_chain(request) for _ in range(shape.at_once)]
    for run in runs:
        run.wait(PATIENCE_S)
    took_ms = (time.perf_counter() - since) * 1000
    failed = [run.run_id for run in runs if run.status() != "succeeded"]
    if failed:
        raise SystemExit(f"{shape.name}: runs {failed[:3]} did not succeed: {runs[0].record().error}")
    return took_ms, runs[0].run_id


def _plain(app: Any, shape: Shape) -> tuple[float, None]:
    since = time.perf_counter()
    canvases = [shape.canvas(lambda: app.tasks["noop"].si()) for _ in range(shape.at_once)]
    for result in [canvas.apply_async() for canvas in canvases]:
        result.get(timeout=PATIENCE_S)
    return (time.perf_counter() - since) * 1000, None


@contextmanager
def _plain_worker(url: str) -> Iterator[Any]:
    os.environ["PLAIN_BROKER"] = url
    from tests.bench import plain  # noqa: PLC0415  # its app reads the address when it is imported

    arguments = [
        "-A",
        "tests.bench.plain",
        "worker",
        "-P",
        "prefork",
        "-c",
        str(PROCESSES),
        "--without-gossip",
        "--without-mingle",
        "-l",
        "ERROR",
    ]
    worker = subprocess.Popen([sys.executable, "-m", "celery", *arguments], env={**os.environ, "PLAIN_BROKER": url})
    try:
        plain.noop.delay().get(timeout=30)
        yield plain.app
    finally:
        worker.terminate()
        worker.wait(15)


def _net(redis: Redis) -> int:
    stats = redis.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


def _kept(redis: Redis, run_id: str) -> int:
    return sum(int(redis.memory_usage(key) or 0) for key in redis.scan_iter(f"*{run_id}*", count=10_000))


def _print(results: dict[str, tuple[Shape, dict[str, Samples]]]) -> None:
    head = (
        "shape",
        "ahead",
        "own task",
        "plain Celery",
        "ahead/plain",
        "own/plain",
        "steps/s ahead",
        "net kB ahead/plain",
        "kept kB a run",
    )
    rows = [head]
    for name, (shape, samples) in results.items():
        ahead, own, plain = (samples[way].median_ms for way in ROUNDS)
        net = "/".join(f"{statistics.median(samples[way].net_bytes) / 1000:.0f}" for way in ("ahead", "plain"))
        kept = f"{(samples['ahead'].kept_bytes or 0) / 1000:.1f}"
        cells = (f"{ahead:.1f} ms", f"{own:.1f} ms", f"{plain:.1f} ms", f"{ahead / plain:.2f}", f"{own / plain:.2f}")
        rows.append((name, *cells, f"{shape.steps * shape.at_once / shape.at_once / ahead * 1000:.0f}", net, kept))
    widths = [max(len(line[column]) for line in rows) for column in range(len(head))]
    for line in rows:
        sys.stdout.write("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |\n")
        if line is head:
            sys.stdout.write("|" + "|".join("-" * (width + 2) for width in widths) + "|\n")
    sys.stdout.write(f"\n{_machine()['processor']}, {os.cpu_count()} cores, prefork {PROCESSES}, Valkey with AOF everysec; medians.\n")


def _raw(results: dict[str, tuple[Shape, dict[str, Samples]]]) -> dict[str, JsonValue]:
    return {name: {way: asdict(sample) for way, sample in samples.items()} for name, (_, samples) in results.items()}


def _machine() -> dict[str, str]:
    return {"processor": platform.processor() or platform.machine(), "python": platform.python_version(), "system": platform.platform()}


if __name__ == "__main__":
    sys.exit(main())
