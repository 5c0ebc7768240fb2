"""What the agents and chains of these tests call."""

from __future__ import annotations

import logging

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
