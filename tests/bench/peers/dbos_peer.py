"""DBOS in this process: workflows whose every step is a row in Postgres, or in SQLite where there is no Postgres."""

from __future__ import annotations

import asyncio
import os

from dbos import DBOS  # type: ignore[import-not-found]

from tests.bench.peers.timing import noop, tell


async def noop_async() -> int:
    """Do nothing."""
    return 1


def row() -> None:
    """Ten steps, one after the other."""
    for _ in range(10):
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


DBOS(config={"name": "bench", "system_database_url": os.environ["PEER_URL"], "log_level": "ERROR", "run_admin_server": False})
step = DBOS.step()(noop)
step_async = DBOS.step()(noop_async)
row_workflow = DBOS.workflow()(row)
diamond_workflow = DBOS.workflow()(diamond)


async def main() -> None:
    """Time the shapes; asynchronous workflows want a loop that lasts."""
    DBOS.launch()
    loop = asyncio.get_running_loop()
    shapes = {
        "row of 10": row_workflow,
        "1 → 100 → 1": lambda: asyncio.run_coroutine_threadsafe(diamond_workflow(), loop).result(),
        "50 rows of 10 at once": rows,
    }
    await asyncio.to_thread(tell, shapes)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
