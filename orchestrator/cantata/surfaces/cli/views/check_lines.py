"""Lines of checks: status, name, message, and the action to take."""

from __future__ import annotations

from collections.abc import Iterator

import click

from cantata.operation.health import Check
from cantata.text import text_format

COLOURS = {"ok": "green", "degraded": "yellow", "failing": "red"}


def lines_of(check: Check, width: int) -> Iterator[str]:
    """Yield the lines of a check; its name takes `width` columns."""
    status = click.style(f"{check.status:8}", fg=COLOURS[check.status])
    yield f"{status}  {check.name:{width}}  {text_format.clean(check.message)}"
    if check.action:
        yield f"{'':10}{'':{width}}  → {text_format.clean(check.action)}"
