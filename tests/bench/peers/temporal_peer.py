"""Temporal: its development server on loopback with a SQLite file, and two worker processes.

`python -m tests.bench.peers.temporal_peer ADDRESS` is a worker.
Activities have the timeout of the documentation's examples, and no heartbeat.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow  # type: ignore[import-not-found]
from temporalio.client import Client  # type: ignore[import-not-found]
from temporalio.worker import Worker  # type: ignore[import-not-found]

with workflow.unsafe.imports_passed_through():
    from tests.bench.peers.timing import (
        LONG,
        PARKED,
        PATIENCE_S,
        free_port,
        hang_once_async,
        in_loop,
        is_wanted,
        memory_mb,
        parked_bytes,
        recovery_ms,
        tell,
        tell_samples,
    )

HOST = "127.0.0.1"
QUEUE = "bench"
WORKERS = 2
TIMEOUT = timedelta(seconds=10)


async def noop_activity() -> int:
    """Do nothing."""
    return 1


async def hang_activity(marker: str) -> int:
    """Hang at the first call."""
    return await hang_once_async(marker)


noop = activity.defn(name="noop")(noop_activity)
hang = activity.defn(name="hang")(hang_activity)


def step() -> Any:
    """Return the future of a step that does nothing."""
    return workflow.execute_activity(noop, start_to_close_timeout=TIMEOUT)


@workflow.defn
class Row:
    """Steps, one after the other."""

    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self, steps: int) -> int:
        """Run them."""
        for _ in range(steps):
            await step()
        return steps


@workflow.defn
class Diamond:
    """A step, many at once, and one that waits for all."""

    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self, width: int) -> int:
        """Run them."""
        await step()
        await asyncio.gather(*(step() for _ in range(width)))
        await step()
        return width


@workflow.defn
class Recovering:
    """Three steps; the worker of the second is killed."""

    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self, marker: str) -> int:
        """Run them."""
        await step()
        await workflow.execute_activity(hang, marker, start_to_close_timeout=TIMEOUT)
        await step()
        return 1


@workflow.defn
class Parked:
    """Wait for a person behind one step."""

    def __init__(self) -> None:
        self.is_approved = False

    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self) -> bool:
        """Wait."""
        await step()
        await workflow.wait_condition(lambda: self.is_approved)
        return self.is_approved

    @workflow.signal  # type: ignore[untyped-decorator]
    def approve(self) -> None:
        """End the wait."""
        self.is_approved = True


async def work(address: str) -> None:
    """Work until killed."""
    worker = Worker(
        await connect(address), task_queue=QUEUE, workflows=[Row, Diamond, Recovering, Parked], activities=[noop, hang]
    )
    await worker.run()


async def connect(address: str) -> Any:
    """Connect, once the server answers."""
    give_up = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            if asyncio.get_running_loop().time() > give_up:
                raise
            await asyncio.sleep(0.1)


async def measure(client: Any, processes: list[subprocess.Popen[bytes]], database: Path) -> None:
    """Time all."""
    loop = asyncio.get_running_loop()

    async def call(run: Any, *given: Any) -> None:
        await client.execute_workflow(run, args=given, id=uuid.uuid4().hex, task_queue=QUEUE)

    async def rows() -> None:
        await asyncio.gather(*(call(Row.run, 10) for _ in range(50)))

    shapes = {
        "row of 10": in_loop(loop, lambda: call(Row.run, 10)),
        "1 → 100 → 1": in_loop(loop, lambda: call(Diamond.run, 100)),
        "50 rows of 10 at once": in_loop(loop, rows),
        "row of 1,000": in_loop(loop, lambda: call(Row.run, LONG)),
    }
    await asyncio.to_thread(tell, shapes)
    if is_wanted("memory"):
        tell_samples("memory", [memory_mb(process.pid for process in processes)])
    if is_wanted("parked"):

        async def park() -> None:
            for _ in range(PARKED):
                await client.start_workflow(Parked.run, id=uuid.uuid4().hex, task_queue=QUEUE)

        tell_samples(
            "parked",
            [await asyncio.to_thread(parked_bytes, lambda: float(database.stat().st_size), in_loop(loop, park))],
        )
    if is_wanted("recovery"):
        marker = Path(os.environ["PEER_HOME"]) / "begun"
        running = asyncio.create_task(call(Recovering.run, str(marker)))

        async def finish() -> None:
            await running

        def kill(pid: int) -> None:
            next(process for process in processes if process.pid == pid).kill()

        tell_samples("recovery", [await asyncio.to_thread(recovery_ms, marker, kill, in_loop(loop, finish))])


def start_server(database: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the development server; it asks nobody for newer versions."""
    binary = Path(sys.executable).parent / "temporal"
    options = ["--ip", HOST, "--port", str(port), "--db-filename", str(database), "--headless", "--log-level", "error"]
    polls = os.environ.get(
        "TEMPORAL_POLLS_PER_S"
    )  # 20 for each shard by default, and the development server has one shard
    for queue in ("transfer", "timer") if polls else ():
        options += ["--dynamic-config-value", f"history.{queue}ProcessorMaxPollRPS={polls}"]
    environment = {**os.environ, "TEMPORAL_VERSION_CHECK_DISABLED": "1"}
    return subprocess.Popen([str(binary), "server", "start-dev", *options], env=environment, stdout=subprocess.DEVNULL)


def start_worker(address: str) -> subprocess.Popen[bytes]:
    """Start a worker process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.peers.temporal_peer", address], stdout=subprocess.DEVNULL
    )


async def main() -> None:
    """Start all, measure, end all."""
    database, port = Path(os.environ["PEER_HOME"]) / "temporal.db", free_port()
    processes = [start_server(database, port)]
    try:
        client = await connect(f"{HOST}:{port}")
        workers = [start_worker(f"{HOST}:{port}") for _ in range(WORKERS)]
        processes = [*workers, *processes]
        await measure(client, processes, database)
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]) if len(sys.argv) > 1 else main())
