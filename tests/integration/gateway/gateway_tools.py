"""What the agents and chains of these tests call."""

from __future__ import annotations

import logging

from cantata import Workflow, workflow
from cantata.values import ToolContext


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def flaky(context: ToolContext) -> str:
    """Fails at first."""
    if context.attempt == 1:
        logging.getLogger(__name__).warning("it fails at first")
        raise RuntimeError("not yet")
    return "now"


def broken() -> str:
    """Fails for good."""
    raise ValueError("it is broken")


@workflow
async def total(wf: Workflow, a: int, b: int = 2) -> int:
    """A workflow that adds by a tool."""
    return int(await wf.call(add, a, b))
