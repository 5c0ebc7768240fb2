"""Health of a deployment: each part has a check that is ok, degraded or failing, with a message and the action to take.

    gather ──▶ facts ──▶ checks ──▶ report

Gathering reads the parts in parallel and waits for a few seconds at most; the rest is pure.
"""

from __future__ import annotations

from cantata.operation.health.checks import Check, HealthReport, evaluate
from cantata.operation.health.gather import gather

__all__ = ["Check", "HealthReport", "evaluate", "gather"]
