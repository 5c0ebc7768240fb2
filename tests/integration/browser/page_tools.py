"""What the agents and chains of these tests call."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from cantata import Workflow, workflow

PATIENCE_S = 100.0

log = logging.getLogger(__name__)


def add(a: int = 1, b: int = 1, **more: object) -> int:
    """Adds two numbers."""
    return a + b


def hold(gate: str, value: object = None) -> object:
    """Waits until a file is there, then gives the value."""
    give_up = time.monotonic() + PATIENCE_S
    while not Path(gate).exists():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{gate} did not come")
        time.sleep(0.02)
    return value


def fail(message: str) -> None:
    """Raises, and logs why."""
    log.warning(message)
    raise RuntimeError(message)


def fail_until(gate: str, message: str) -> str:
    """Raises until a file is there."""
    log.warning("looking for a gate")
    if not Path(gate).exists():
        raise RuntimeError(message)
    return "went well"


def search(query: str) -> dict[str, str]:
    """Looks up an error."""
    return {"found": f"{query}: the disk is full"}


def echo(**given: object) -> dict[str, object]:
    """Gives back what was given."""
    return given


@workflow
async def asks(wf: Workflow) -> Any:
    """Wait for a person."""
    return await wf.wait("approve")


@workflow
async def naps(wf: Workflow) -> None:
    """Sleep longer than a test."""
    await wf.sleep(3600)
