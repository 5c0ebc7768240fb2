"""Workflows that do the same as chains of the benchmark."""

from __future__ import annotations

from typing import Any

from bench_tools import noop  # type: ignore[import-not-found]  # found beside this file, by workers
from peers.timing import hang_once  # type: ignore[import-not-found]  # likewise

from cantata import Workflow, workflow


@workflow
async def row(wf: Workflow, steps: int) -> Any:
    """Call a function in a row."""
    last = None
    for _ in range(steps):
        last = await wf.call(noop)
    return last


@workflow
async def fan(wf: Workflow, width: int) -> int:
    """Call it once, then many times at once, then once more."""
    await wf.call(noop)
    found = await wf.gather(*(wf.call(noop) for _ in range(width)))
    await wf.call(noop)
    return len(found)


@workflow
async def parked(wf: Workflow) -> Any:
    """Wait for a person behind one step."""
    await wf.call(noop)
    return await wf.wait("approve")


@workflow
async def recovering(wf: Workflow, marker: str) -> int:
    """Three steps; the worker of the second is killed."""
    await wf.call(noop)
    await wf.call(hang_once, marker)
    await wf.call(noop)
    return 1
