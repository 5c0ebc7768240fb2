"""Says whether all is well: each matter has a line that is green, yellow or red, with the reason and what to do.

    gather ──▶ facts ──▶ lines_of_redis, lines_of_fleet, lines_of_limits, lines_of_doors ──▶ report

Gathering asks, each part for itself and for seconds at most; the rest is pure.
"""

from __future__ import annotations

from cantata.health.facts import Facts, Missing
from cantata.health.fleet_checks import of_fleet
from cantata.health.gather import gather
from cantata.health.limit_checks import of_limits
from cantata.health.redis_checks import of_store
from cantata.health.report import Line, Report, report
from cantata.health.service_checks import of_doors, of_stack

__all__ = ["Line", "Report", "gather", "judged"]


def judged(facts: Facts) -> Report:
    """What is to be said of these facts."""
    lines = [*of_store(facts.store)]
    if not isinstance(facts.store, Missing) or not isinstance(facts.fleet, Missing):  # else both would say the same
        lines += [*of_fleet(facts.fleet, facts.version, facts.broker), *of_limits(facts.shared)]
    return report([*lines, *of_doors(facts.doors), *of_stack(facts.stack, facts.dead, facts.code_fault)])
