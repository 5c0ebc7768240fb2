"""`./run bench`: every figure measured in this run, on this machine, beside plain Celery with the same pools and other engines."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from cantata.flows.definitions import Defaults
from cantata.ledger.redis.connection import connect
from cantata.values import JsonValue
from tests.bench import report
from tests.bench.agents import measure_agents
from tests.bench.batches import measure_batch
from tests.bench.capacity import measure_capacity
from tests.bench.code import measure_code
from tests.bench.comparison import measure_comparison
from tests.bench.expansions import measure_expansions
from tests.bench.fairness import measure_fairness
from tests.bench.growth import measure_growth
from tests.bench.measure import database, measure_shapes, plain_worker, stack
from tests.bench.neighbours import measure_neighbours
from tests.bench.pages import measure_pages
from tests.bench.rivals import measure_peers
from tests.bench.scale import measure_scale
from tests.bench.schedules import measure_schedules
from tests.bench.shapes import Shape, shapes
from tests.bench.soak import RETENTION_S, SAMPLES, measure_soak
from tests.bench.turns import measure_turns
from tests.bench.workflows import measure_workflows

PEER_SHAPES = ("row of 10", "1 → 100 → 1", "50 rows of 10 at once")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of every `finally`: what was started is ended
    measured: dict[str, JsonValue] = {"machine": report.machine(), "versions": report.versions()}
    wanted = [shape for shape in shapes(quick=options.quick) if not options.only or options.only in shape.name]
    if wanted:
        measured |= _shapes(wanted, peers=options.peers)
    if options.growth:
        with stack() as client:
            grown = measure_growth(client)
            items = measure_expansions(connect(database(client.redis_url, 2)))
        report.print_growth(grown)
        report.print_expansions(items)
        measured |= {"growth": [asdict(each) for each in grown], "expansions": [asdict(each) for each in items]}
    if options.soak:
        with stack(Defaults(retention_s=RETENTION_S), agents=1) as client:
            sizes = measure_soak(client, options.soak)
        report.print_soak(sizes)
        measured["soak"] = [asdict(each) for each in sizes]
    if options.fairness:
        with stack() as client:
            seen = measure_fairness(client)
        report.print_fairness(seen)
        measured["fairness"] = asdict(seen)
    if options.agents:
        figures = measure_agents()
        report.print_agents(figures)
        measured["agents"] = [asdict(each) for each in figures]
    if options.turns:
        turns = measure_turns(quick=options.quick)
        report.print_turns(turns)
        measured["turns"] = asdict(turns)
    if options.workflows:
        workflows = measure_workflows(quick=options.quick)
        report.print_workflows(workflows)
        measured["workflows"] = asdict(workflows)
    if options.pages:
        with stack() as client:
            waits = measure_pages(client, runs=options.pages)
        report.print_pages(waits)
        measured["pages"] = [asdict(each) for each in waits]
    if options.scale:
        with stack() as client:
            scale = measure_scale(client)
        report.print_scale(scale)
        measured["scale"] = asdict(scale)
    if options.capacity:
        costs = measure_capacity()
        report.print_capacity(costs)
        measured["capacity"] = [asdict(each) for each in costs]
    if options.neighbours:
        beside = measure_neighbours()
        report.print_neighbours(beside)
        measured["neighbours"] = {
            each.shape.name: {"ours": asdict(each.ours), "theirs": asdict(each.theirs)} for each in beside
        }
    if options.code:
        with stack() as client:
            code = measure_code(client)
        report.print_code(code)
        measured["code"] = asdict(code)
    if options.code and options.peers:
        engines = measure_comparison()
        report.print_comparison(engines)
        measured["comparison"] = [asdict(each) for each in engines]
    if options.batch:
        batch = measure_batch(options.batch)
        report.print_batch(batch)
        measured["batch"] = asdict(batch)
    if options.schedules:
        with stack() as client:
            planned = measure_schedules(client, options.schedules)
        report.print_schedules(planned)
        measured["schedules"] = asdict(planned)
    if options.json:
        report.write_json(options.json, measured)
    return 0


def _shapes(wanted: Sequence[Shape], *, peers: bool) -> dict[str, JsonValue]:
    with stack() as client:
        with plain_worker(database(client.redis_url, 1)) as app:
            results = measure_shapes(client, app, wanted)
        compared = [shape.name for shape in wanted if shape.name in PEER_SHAPES]
        told = measure_peers(client.redis_url, compared) if peers and compared else []
        server = report.server_of(client.redis)
    report.print_shapes(wanted, results)
    if told:
        report.print_peers(compared, results, told)
    return {"server": dict(server), "shapes": report.raw_shapes(results), "peers": [asdict(each) for each in told]}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line; without one, of this process's."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out 10,000 wide, and growth; fewer turns")
    parser.add_argument("--peers", action="store_true", help="other engines too; installs them under .cantata")
    parser.add_argument(
        "--growth",
        action="store_true",
        help="the cost of a step by the size of its run; usual without --quick and --only",
    )
    parser.add_argument(
        "--soak", metavar="N", type=int, default=0, help=f"memory over N finished runs, {SAMPLES} or more; say 20000"
    )
    parser.add_argument("--fairness", action="store_true", help="how long a run waits beside 5,000 of another client")
    parser.add_argument(
        "--agents", action="store_true", help="what agents cost around their model calls, beside LiteLLM alone"
    )
    parser.add_argument(
        "--turns", action="store_true", help="turns in each mode, and sessions, beside LiteLLM alone and plain Celery"
    )
    parser.add_argument(
        "--workflows",
        action="store_true",
        help="workflows, conductors and groups beside LiteLLM alone; parked runs, and forks",
    )
    parser.add_argument(
        "--neighbours", action="store_true", help="tasks of an existing Celery application, beside its own canvases"
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="workflows in Python, beside chains of the same steps; with --peers, beside other engines",
    )
    parser.add_argument(
        "--pages", metavar="N", type=int, default=0, help="lists of N runs, and graphs of large ones; say 100000"
    )
    parser.add_argument(
        "--scale",
        action="store_true",
        help="Redis at rest, with 1,000 workers, 100,000 parked runs and 5,000 followers",
    )
    parser.add_argument("--capacity", action="store_true", help="the processor time that a run costs each process")
    parser.add_argument(
        "--batch", metavar="N", type=int, default=0, help="a batch of N rows, beside a loop over LiteLLM; say 100000"
    )
    parser.add_argument(
        "--schedules", metavar="N", type=int, default=0, help="N schedules at rest, and how late runs start; say 10000"
    )
    parser.add_argument(
        "--only",
        metavar="TEXT",
        help="only shapes whose name has this text; with none, only what other options ask for",
    )
    parser.add_argument("--json", metavar="FILE", help="write machine, versions and raw samples")
    options = parser.parse_args(arguments)
    if 0 < options.soak < SAMPLES or options.soak < 0:
        parser.error(f"--soak needs at least {SAMPLES} runs")
    options.growth = options.growth or not (options.quick or options.only)
    return options


if __name__ == "__main__":
    sys.exit(main())
