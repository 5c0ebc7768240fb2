"""Tools and a workflow of the recorded project."""

import asyncio
import logging

from cantata import Workflow, workflow

log = logging.getLogger(__name__)


def double(n: int) -> int:
    """Double a number."""
    log.warning("doubles %d", n)
    return 2 * n


def odd(n: int) -> int:
    """Return a number that is odd."""
    if n % 2 == 0:
        raise ValueError(f"{n} is even")
    return n


async def slow() -> None:
    """Take long."""
    await asyncio.sleep(60)


@workflow
async def greet(wf: Workflow, name: str) -> str:
    """Greet somebody."""
    said: list[str] = []

    @wf.query
    def progress() -> list[str]:
        return said

    said.append(await wf.agent("poet", f"hello {name}"))
    return f"{said[0]} {await wf.tool('double', n=len(name))}"
