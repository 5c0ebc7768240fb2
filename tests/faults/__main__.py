"""`./run faults [--minutes N] [--seed S]`: strikes, cases, chaos, poison, recovery, deploys; each violation a line, and 1 if there is any.

With `--fuzz` other parts: the gateway, chats and chains are fed what nobody should send, and texts that are hardly texts are read.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import inf
from pathlib import Path

import structlog

from tests import warm
from tests.faults import bad_deploys, chaos, deploys, history, points, poison, recovery, releases
from tests.faults import cases as named_cases
from tests.faults.fuzz import parts as fuzz
from tests.faults.past import Violation
from tests.faults.shapes import SHAPES
from tests.faults.stage import stage

ROUND_S = 40.0  # of chaos: short, so that what a seed did can be read
KILLS = 30
BEHIND_KILLS, WAITING = 10, 50_000
MINUTES = 12.0
LONG_STEP_S, BLOCKS_S = 60.0, 10.0
GOOD_DEPLOYS = 0.4  # their share of the time of the deploys


@dataclass(frozen=True)
class Result:
    """What came of a part."""

    summary: str
    violations: Sequence[Violation]


Part = Callable[[Path, int, float], Result]
"""(an empty folder, seed, seconds) → what came of it."""


def strike_points(
    folder: Path, seed: int, seconds: float, *, shapes: Collection[str] = (), once: bool = False
) -> Result:
    """Each fault at each point in each shape, or in some, as far as the time goes; or each once, however long that takes."""
    cases = points.every_case(random.Random(seed), shapes)
    if once:
        seconds, cases = inf, takewhile(lambda case: case.times == 1, cases)
    with stage(folder, drain_s=0.5, armed=True) as world:
        report = points.strike(world, cases, time.monotonic() + seconds, print)
    missed = "".join(
        f"\n    {label} is not reached in {', '.join(shapes)}" for label, shapes in report.missed_by_label()
    )
    return Result(f"{report.cases} cases{missed}", report.violations)


def do_cases(folder: Path, seed: int, seconds: float) -> Result:
    """The named cases of workflows in Python."""
    violations: list[Violation] = []
    with stage(folder) as world:
        for name in named_cases.CASES:
            since = time.monotonic()
            found = named_cases.do(world, name)
            violations += found
            print(f"    {time.monotonic() - since:5.1f} s  {len(found)} violations  {name}", flush=True)
        violations += [each for each in history.check(world.journal, world.client.redis) if each not in violations]
    return Result(f"{len(named_cases.CASES)} cases", violations)


def wreak_chaos(folder: Path, seed: int, seconds: float) -> Result:
    """Rounds with seeds of their own, from `seed` on."""
    give_up = time.monotonic() + seconds
    runs, number = 0, 0
    while time.monotonic() < give_up:
        own = folder / str(seed + number)
        own.mkdir()
        more, violations = chaos.wreak(own, seed + number, ROUND_S)
        if violations:
            return Result(
                f"round of seed {seed + number}; replay: ./run faults --only chaos --seed {seed + number} --minutes 0.5",
                violations,
            )
        shutil.rmtree(own)
        runs, number = runs + more, number + 1
    return Result(f"{number} rounds, {runs} runs", [])


def measure_recovery(folder: Path, seed: int, seconds: float) -> Result:
    """Kills, and a step of a minute whose worker lives; then kills while many steps wait."""
    with stage(folder) as world:
        with recovery.blocked(world, LONG_STEP_S, BLOCKS_S):
            found = recovery.measure(world, KILLS)
        violations = [*found.violations(), *history.check(world.journal, world.client.redis)]
    own = folder / "backlog"
    own.mkdir()
    with stage(own) as world:
        sent, behind = recovery.measure_behind(world, BEHIND_KILLS, WAITING)
    told = f"{found}; with {WAITING:,} waiting, sent again: p50 {sent.p50_s:.2f} s, p99 {sent.p99_s:.2f} s, then for a free slot: {behind}"
    return Result(told, [*violations, *sent.violations(), *behind.violations()])


def roll_out(folder: Path, seed: int, seconds: float) -> Result:
    """A change of releases and back; restarts under load; then releases that no worker can serve."""
    built, forth, back, good, bad = folders = [folder / name for name in ("built", "forth", "back", "good", "bad")]
    for each in folders:
        each.mkdir()
    before, now = releases.both(built)
    changes = [releases.change(forth, before, now), releases.change(back, now, before)]
    report = deploys.roll_out(good, seed, seconds * GOOD_DEPLOYS)
    spoilt = bad_deploys.roll_out(bad, seed, seconds * (1 - GOOD_DEPLOYS))
    summary = (
        f"{sum(change.runs for change in changes)} runs while releases changed; {report.deploys} deploys, {report.runs} runs; "
        f"the slowest worker ended {report.slowest_end_s:.1f} s after SIGTERM; "
        f"{spoilt.deploys} bad releases, {spoilt.runs} runs, of which {spoilt.refused} waited with a refused step"
    )
    return Result(
        summary, [*(each for change in changes for each in change.violations), *report.violations, *spoilt.violations]
    )


def spread_poison(folder: Path, seed: int, seconds: float) -> Result:
    """Bad items in Redis, while workers are killed."""
    return Result(*poison.poison(folder, seed, seconds))


PARTS: dict[str, tuple[Part, float]] = {
    "points": (strike_points, 0.45),
    "cases": (do_cases, 0.0),
    "chaos": (wreak_chaos, 0.25),
    "poison": (spread_poison, 0.1),
    "recovery": (measure_recovery, 0.0),
    "deploys": (roll_out, 0.2),
}
"""The parts, and the share of each in the minutes; cases, recovery and the change of releases take the two or three that they need."""


def fuzz_gateway(rounds: fuzz.Round, harmless: fuzz.Round) -> Part:
    """Feed a stack's gateway, beside a second tenant."""

    def part(folder: Path, seed: int, seconds: float) -> Result:
        with fuzz.world(folder) as (desk, gateway):
            fed = fuzz.feed(desk, gateway, random.Random(seed), seconds, rounds, harmless)
        return Result(fed.summary, fed.violations)

    return part


def fuzz_readers(folder: Path, seed: int, seconds: float) -> Result:
    """Read texts in this process."""
    fed = fuzz.read(random.Random(seed), seconds)
    return Result(fed.summary, fed.violations)


FUZZ: dict[str, tuple[Part, float]] = {
    "gateway": (fuzz_gateway(fuzz.by_schema, fuzz.by_plain_requests), 0.25),
    "chats": (fuzz_gateway(fuzz.by_chats, fuzz.by_plain_chats), 0.25),
    "chains": (fuzz_gateway(fuzz.by_chains, fuzz.by_plain_chains), 0.25),
    "readers": (fuzz_readers, 0.25),
}
"""The parts of `--fuzz`, ten minutes each if nothing is said."""
FUZZ_MINUTES = 40.0


def main() -> int:
    """Do the parts; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="./run faults", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, help=f"of all parts together; {MINUTES:g}, with --fuzz {FUZZ_MINUTES:g}"
    )
    parser.add_argument(
        "--fuzz", action="store_true", help="feed it what nobody should send, in place of the other parts"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", choices=[*PARTS, *FUZZ])
    parser.add_argument(
        "--shape", choices=SHAPES, action="append", default=[], help="of the points; may be told more than once"
    )
    parser.add_argument(
        "--every-case", action="store_true", help="of the points: each once, however long that takes (an hour or so)"
    )
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"seed {options.seed}")
    chosen = FUZZ if options.fuzz or options.only in FUZZ else PARTS
    options.minutes = options.minutes or (FUZZ_MINUTES if chosen is FUZZ else MINUTES)
    with ExitStack() as opened:
        warm.serve(opened.callback)
        warm.use()
        failed = [
            name for name, part in chosen.items() if options.only in (None, name) and not _do(name, part, options)
        ]
    if failed:
        print(f"violations in {', '.join(failed)}; seed {options.seed}")
    return 1 if failed else 0


def _do(name: str, named: tuple[Part, float], options: argparse.Namespace) -> bool:
    """Do one part and tell; the folder of one that failed is kept."""
    part, share = named
    if name == "points":
        part = partial(strike_points, shapes=options.shape, once=options.every_case)
    folder = Path(tempfile.mkdtemp(prefix=f"cantata-faults-{name}-"))
    since = time.monotonic()
    try:
        result = part(folder, options.seed, options.minutes * 60 * (1.0 if options.only else share))
    except TimeoutError as error:
        result = Result("it could not go on", [Violation("", "", "a fleet that comes back", str(error))])
    print(
        f"{name:9} {time.monotonic() - since:5.0f} s  {len(result.violations)} violations  {result.summary}", flush=True
    )
    if not result.violations:
        shutil.rmtree(folder)
        return True
    print(
        *(f"    {violation}" for violation in result.violations),
        f"    journal and logs: {folder}",
        sep="\n",
        flush=True,
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
