"""Checks the history of all runs after the fact.

`python -m tests.faults.history JOURNAL --redis URL` prints each violation, and exits 1 if there is any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from redis import Redis

from orchestrator.state.connection import connect
from tests.faults import keys, limits, past
from tests.faults.journal import Journal
from tests.faults.past import Violation
from tests.faults.rules import RULES


def check(journal: Journal, redis: Redis) -> list[Violation]:
    """All that is wrong with the runs of a journal, which are over, and with what lies in their Redis."""
    return [*check_runs(journal, redis), *keys.check(redis), *limits.check(redis)]


def check_runs(journal: Journal, redis: Redis, only: str | None = None) -> Iterator[Violation]:
    """What is wrong with the runs of a journal, or with one of them."""
    for found in past.read(journal, redis, only):
        if isinstance(found, Violation):
            yield found
        else:
            for rule in RULES:
                yield from rule(found)


def main() -> int:
    """Check; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.history", description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--redis", required=True, metavar="URL")
    options = parser.parse_args()
    if not options.journal.is_file():
        parser.error(f"there is no journal {str(options.journal)!r}")
    violations = check(Journal(options.journal), connect(options.redis))
    print(*violations, sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
