"""Checks the history of all runs after the fact.

`python -m tests.faults.history JOURNAL --redis URL` prints each violation, and exits 1 if there is any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from redis import Redis

from cantata.features.forks.fork_requests import FORKED_FROM
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from tests.faults import groups, keys, limits, past
from tests.faults.journal import Journal
from tests.faults.past import Past, Violation
from tests.faults.rules import RULES


def check(journal: Journal, redis: Redis) -> list[Violation]:
    """All that is wrong with the runs of a journal, which are over, and with what lies in their Redis."""
    found = list(past.read(journal, redis))
    rotations = groups.check_rotations(each for each in found if isinstance(each, Past))
    return [*_check(found, redis), *rotations, *_untold_forks(found, redis), *keys.check(redis), *limits.check(redis)]


def check_runs(journal: Journal, redis: Redis, only: Collection[str]) -> Iterator[Violation]:
    """What is wrong with some runs of a journal; of a session they are all turns or none."""
    return _check(list(past.read(journal, redis, only)), redis)


def _untold_forks(found: Iterable[Past | Violation], redis: Redis) -> Iterator[Violation]:
    """A fork whose maker was struck is found by who asks for it again, so that there is none besides."""
    told = {each.picture.run_id for each in found if isinstance(each, Past)}
    for record in Ledger(redis).reader.newest(most=sys.maxsize):
        if FORKED_FROM in record.labels and record.run_id not in told:
            yield Violation(
                record.run_id,
                "",
                "each fork told to who asked for it",
                f"one of {record.labels[FORKED_FROM]} that is {record.status}",
            )


def _check(found: Iterable[Past | Violation], redis: Redis) -> Iterator[Violation]:
    pasts = [each for each in found if isinstance(each, Past)]
    yield from (each for each in found if isinstance(each, Violation))
    yield from (violation for each in pasts for rule in RULES for violation in rule(each))
    yield from groups.check_forks(pasts)
    yield from (violation for talk in groups.talks(pasts, Ledger(redis)) for violation in groups.check_talk(talk))


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
