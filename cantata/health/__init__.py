"""Health of a deployment: each part has a check that is ok, degraded or failing, with a message and the action to take.

    gather ──▶ facts ──▶ redis_checks, fleet_checks, limit_checks, service_checks ──▶ report

Gathering reads the parts in parallel and waits for a few seconds at most; the rest is pure.
"""

from __future__ import annotations

from cantata.health.facts import Facts, Unavailable
from cantata.health.fleet_checks import check_fleet
from cantata.health.gather import gather
from cantata.health.limit_checks import check_limits
from cantata.health.redis_checks import check_redis
from cantata.health.report import Check, HealthReport, report
from cantata.health.service_checks import check_services, check_stack

__all__ = ["Check", "HealthReport", "evaluate", "gather"]


def evaluate(facts: Facts) -> HealthReport:
    """Return the health that these facts show."""
    checks = check_redis(facts.redis)
    if not isinstance(facts.redis, Unavailable) or not isinstance(facts.fleet, Unavailable):  # else both have the same reason
        checks += [*check_fleet(facts.fleet, facts.version, facts.broker), *check_limits(facts.limits)]
    return report([*checks, *check_services(facts.services), *check_stack(facts.stack_home, facts.dead_processes, facts.code_fault)])
