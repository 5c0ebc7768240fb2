"""Prefect with a server of its own on SQLite: flows whose tasks keep their results, so that a flow run again skips them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from prefect import flow, task  # type: ignore[import-not-found]

from tests.bench.peers.timing import noop, tell

step = task(persist_result=True)(noop)


def row() -> None:
    """Ten steps, one after the other."""
    for _ in range(10):
        step()


def diamond() -> None:
    """A step, a hundred at once, and one that waits for all."""
    first = step.submit()
    middle = [step.submit(wait_for=[first]) for _ in range(100)]
    step.submit(wait_for=middle).result()


row_flow = flow(name="row")(row)
diamond_flow = flow(name="diamond")(diamond)


def rows() -> None:
    """Fifty flows at once."""
    with ThreadPoolExecutor(50) as threads:
        for future in [threads.submit(row_flow) for _ in range(50)]:
            future.result()


if __name__ == "__main__":
    row_flow()  # starts the server: fifty threads at once cannot
    tell({"row of 10": row_flow, "1 → 100 → 1": diamond_flow, "50 rows of 10 at once": rows})
