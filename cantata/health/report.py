"""Results of checks: each is ok, degraded or failing, with a message and the action to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from cantata.models.values import Value

CheckStatus = Literal["ok", "degraded", "failing"]

SEVERITIES: dict[CheckStatus, int] = {"ok": 0, "degraded": 1, "failing": 2}


class Check(Value):
    """Result of checking one part of a deployment or a machine."""

    name: str = Field(description="the part that was checked, in a word or two")
    status: CheckStatus = Field(description="ok; degraded: it works, with a problem; failing: it does not work")
    message: str = Field(description="the state of the part, and the problem if there is one")
    action: str = Field(default="", description="the action to take; empty if there is none, or if `message` names it")


class HealthReport(Value):
    """Results of all checks."""

    status: CheckStatus = Field(description="the worst status of the checks")
    checks: tuple[Check, ...] = Field(description="one check for each part")


def ok(name: str, message: str) -> Check:
    """Return a check without a problem."""
    return Check(name=name, status="ok", message=message)


def degraded(name: str, message: str, action: str = "") -> Check:
    """Return a check of a part that works, with a problem."""
    return Check(name=name, status="degraded", message=message, action=action)


def failing(name: str, message: str, action: str = "") -> Check:
    """Return a check of a part that does not work."""
    return Check(name=name, status="failing", message=message, action=action)


def report_of(checks: Iterable[Check]) -> HealthReport:
    """Return the report of these checks."""
    found = tuple(checks)
    return HealthReport(status=max((check.status for check in found), key=SEVERITIES.__getitem__, default="ok"), checks=found)
