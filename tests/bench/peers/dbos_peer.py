"""DBOS in this process: workflows whose every step is a row in Postgres, or in SQLite where there is no Postgres.

`python -m tests.bench.peers.dbos_peer MARKER` is an application of its own, to be killed and started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]

from tests.bench.peers.timing import (
    LONG,
    PARKED,
    hang_once,
    is_wanted,
    memory_mb,
    noop,
    parked_bytes,
    recovery_ms,
    tell,
    tell_samples,
)

RECOVERED = "recovered"  # what the application says at the end of its run
URL = os.environ["PEER_URL"]


async def noop_async() -> int:
    """Do nothing."""
    return 1


def row() -> None:
    """Ten steps, one after the other."""
    for _ in range(10):
        step()


def long_row() -> None:
    """A thousand steps, one after the other."""
    for _ in range(LONG):
        step()


async def diamond() -> None:
    """A step, a hundred at once, and one that waits for all."""
    await step_async()
    await asyncio.gather(*(step_async() for _ in range(100)))
    await step_async()


def rows() -> None:
    """Fifty workflows at once."""
    handles = [DBOS.start_workflow(row_workflow) for _ in range(50)]
    for handle in handles:
        handle.get_result()


def recovering(marker: str) -> int:
    """Three steps; the process is killed in the second."""
    step()
    hang_step(marker)
    step()
    return 1


async def parked() -> None:
    """Wait for a person behind one step."""
    await step_async()
    await DBOS.recv_async("approve", timeout_seconds=86_400)


DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "ERROR", "run_admin_server": False})
step = DBOS.step()(noop)
step_async = DBOS.step()(noop_async)
hang_step = DBOS.step()(hang_once)
row_workflow = DBOS.workflow()(row)
long_workflow = DBOS.workflow()(long_row)
diamond_workflow = DBOS.workflow()(diamond)
recovering_workflow = DBOS.workflow()(recovering)
parked_workflow = DBOS.workflow()(parked)


def application(marker: str) -> None:
    """Start the run that is to be recovered, or, when it is there, let `launch` recover it; say when it is over."""
    DBOS.launch()
    with SetWorkflowID("recovering"):
        handle = DBOS.start_workflow(recovering_workflow, marker)
    handle.get_result()
    sys.stdout.write(f"{RECOVERED}\n")
    sys.stdout.flush()
    DBOS.destroy()


def recovery() -> float:
    """Kill the application in the middle of its run, and start it again at once."""
    marker = Path(os.environ["PEER_HOME"]) / "begun"
    command = [sys.executable, "-m", "tests.bench.peers.dbos_peer", str(marker)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def restart(_: int) -> None:
        nonlocal running
        running.kill()
        running.communicate()
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def finish() -> None:
        assert running.stdout
        if running.stdout.readline().strip() != RECOVERED:
            raise RuntimeError("the application ended before its run did")

    try:
        return recovery_ms(marker, restart, finish)
    finally:
        running.kill()
        running.communicate()


def stored_bytes() -> float:
    """Return the size of the database, without what is free in it."""
    if URL.startswith("sqlite:///"):
        with sqlite3.connect(URL.removeprefix("sqlite:///")) as connection:
            pages, free, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return float((pages - free) * size)
    import psycopg  # type: ignore[import-not-found]  # noqa: PLC0415  # comes with DBOS

    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute("VACUUM FULL")
        return float(connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])


async def main() -> None:
    """Time the shapes; asynchronous workflows want a loop that lasts."""
    if is_wanted("recovery"):
        tell_samples("recovery", [await asyncio.to_thread(recovery)])
    DBOS.launch()
    loop = asyncio.get_running_loop()
    shapes = {
        "row of 10": row_workflow,
        "1 → 100 → 1": lambda: asyncio.run_coroutine_threadsafe(diamond_workflow(), loop).result(),
        "50 rows of 10 at once": rows,
        "row of 1,000": long_workflow,
    }
    await asyncio.to_thread(tell, shapes)
    if is_wanted("memory"):
        tell_samples("memory", [memory_mb([os.getpid(), *json.loads(os.environ["PEER_SERVERS"])])])
    if is_wanted("parked"):

        async def park() -> None:
            for _ in range(PARKED):
                await DBOS.start_workflow_async(parked_workflow)

        tell_samples(
            "parked",
            [
                await asyncio.to_thread(
                    parked_bytes, stored_bytes, lambda: asyncio.run_coroutine_threadsafe(park(), loop).result()
                )
            ],
        )
        os._exit(0)  # its runs wait for a day
    DBOS.destroy()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        application(sys.argv[1])
    else:
        asyncio.run(main())
