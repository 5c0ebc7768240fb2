"""Says whether all is well: each matter has a line that is green, yellow or red, with the reason and what to do.

    gather ──▶ facts ──▶ lines_of_redis, lines_of_fleet, lines_of_limits, lines_of_doors ──▶ report

Gathering asks, each part for itself and for seconds at most; the rest is pure.
"""

from __future__ import annotations

from orchestrator.health.facts import Facts, Missing
from orchestrator.health.gather import gather
from orchestrator.health.lines_of_doors import of_doors, of_stack
from orchestrator.health.lines_of_fleet import of_fleet
from orchestrator.health.lines_of_limits import of_limits
from orchestrator.health.lines_of_redis import of_store
from orchestrator.health.report import Line, Report, report

__all__ = ["Line", "Report", "gather", "judged"]


def judged(facts: Facts) -> Report:
    """What is to be said of these facts."""
    lines = [*of_store(facts.store)]
    if not isinstance(facts.store, Missing) or not isinstance(facts.fleet, Missing):  # else both would say the same
        lines += [*of_fleet(facts.fleet, facts.version, facts.broker), *of_limits(facts.shared)]
    return report([*lines, *of_doors(facts.doors), *of_stack(facts.stack, facts.dead, facts.code_fault)])
