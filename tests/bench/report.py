"""Prints what was measured, as Markdown tables, and writes it down as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from redis import Redis

from cantata.values import JsonValue
from tests.bench.agents import Figure
from tests.bench.batches import TARGET as BATCH_TARGET
from tests.bench.batches import BatchFigures
from tests.bench.capacity import WORKERS as CAPACITY_WORKERS
from tests.bench.capacity import Cost
from tests.bench.code import LONG, CodeFigures
from tests.bench.code import TARGET_RATIO as TARGET_CODE_RATIO
from tests.bench.comparison import FIGURES, ROUNDS, Engine
from tests.bench.expansions import ItemCost, verdict
from tests.bench.fairness import TARGET_S, Fairness
from tests.bench.growth import Grown, verdicts
from tests.bench.measure import PROCESSES, Samples
from tests.bench.neighbours import TARGET_RATIO, Beside
from tests.bench.pages import Wait
from tests.bench.rivals import Told
from tests.bench.scale import TARGET_PERCENT as TARGET_REST_PERCENT
from tests.bench.scale import TARGET_SWEEP_MS, WORKERS, Scale
from tests.bench.schedules import MAX_LATE_S, ScheduleFigures
from tests.bench.shapes import Shape
from tests.bench.soak import TARGET_PERCENT, WARM_UP, Size, growth_percent
from tests.bench.turns import Latency, Rate, Turns
from tests.bench.workflows import Workflows

ROOT = Path(__file__).parents[2]


def print_shapes(wanted: Sequence[Shape], results: Mapping[str, Mapping[str, Samples]]) -> None:
    """Cantata against plain Celery."""
    head = (
        "shape",
        "ahead",
        "pure",
        "own task",
        "plain Celery",
        "ahead/plain",
        "pure/plain",
        "own/plain",
        "steps/s ahead",
        "net kB ahead/plain",
        "kept kB a run",
    )
    _table(head, (_shape_row(shape, results[shape.name]) for shape in wanted))
    _say(f"\n{_processor()}, {os.cpu_count()} cores, prefork {PROCESSES}, Valkey with AOF everysec; medians.")


def _shape_row(shape: Shape, samples: Mapping[str, Samples]) -> tuple[str, ...]:
    ahead, own, plain = (samples[way].median_ms for way in ("ahead", "own task", "plain"))
    steps_a_second = shape.steps * shape.at_once / ahead * 1000
    net = "/".join(f"{statistics.median(samples[way].net_bytes) / 1000:.0f}" for way in ("ahead", "plain"))
    kept = f"{(samples['ahead'].kept_bytes or 0) / 1000:.1f}"
    pure = samples["pure"].median_ms if "pure" in samples else None
    pure_ms, pure_ratio = ("", "") if pure is None else (f"{pure:.1f} ms", f"{pure / plain:.2f}")
    times = (
        f"{ahead:.1f} ms",
        pure_ms,
        f"{own:.1f} ms",
        f"{plain:.1f} ms",
        f"{ahead / plain:.2f}",
        pure_ratio,
        f"{own / plain:.2f}",
    )
    return (shape.name, *times, f"{steps_a_second:.0f}", net, kept)


def print_peers(shapes: Sequence[str], results: Mapping[str, Mapping[str, Samples]], told: Sequence[Told]) -> None:
    """Everyone, a row each."""
    how = f"{PROCESSES} processes, Redis"
    ways = {"ahead": "Cantata, cheap steps", "own task": "Cantata, a task for each step", "plain": "plain Celery"}
    rows = [(name, how, *(_ms(results[shape][way].ms) for shape in shapes)) for way, name in ways.items()]
    rows += [(each.name, each.how, *(_ms(each.samples_ms.get(shape, [])) for shape in shapes)) for each in told]
    _say("")
    _table(("engine", "how", *shapes), rows)
    for each in told:
        if each.missing:
            _say(f"\n{each.name}: {each.missing}.")


def _ms(samples: Sequence[float]) -> str:
    return f"{statistics.median(samples):.1f} ms{' (once)' if len(samples) == 1 else ''}" if samples else "none"


def print_growth(grown: Sequence[Grown]) -> None:
    """The cost of a step by the size of its run."""
    _say("")
    rows = (
        (f"{e.sort}, {e.steps:,} steps", *_ms_and_rate(e), f"{e.step_ms:.3f} ms", f"{e.step_bytes:.0f}") for e in grown
    )
    _table(("run", "took", "steps/s", "a step", "bytes kept a step"), rows)
    for line in verdicts(grown):
        _say(line)


def print_expansions(costs: Sequence[ItemCost]) -> None:
    """What an item of a map costs Redis while it works as an agent with a tool."""
    _say("")
    _table(
        ("map of agents", "Redis an item", "written an item"),
        ((f"{c.width:,} items", f"{c.redis_us:.0f} µs", f"{c.written_bytes:.0f} bytes") for c in costs),
    )
    _say(verdict(costs))


def _ms_and_rate(grown: Grown) -> tuple[str, str]:
    return _ms(grown.samples_ms), f"{1000 / grown.step_ms:.0f}"


def print_pages(waits: Sequence[Wait]) -> None:
    """What the run pages wait for."""
    _say("")
    rows = ((w.what, _ms(w.samples_ms), f"{max(w.samples_ms):.1f} ms", _call_ms(w)) for w in waits)
    _table(("what", "took", "at most", "slowest call of Redis"), rows)


def _call_ms(wait: Wait) -> str:
    return "" if wait.slowest_call_ms is None else f"{wait.slowest_call_ms:.1f} ms"


def print_soak(sizes: Sequence[Size]) -> None:
    """The memory of all over many runs."""
    _say("")
    percents = growth_percent(sizes)
    rows = (
        (
            name,
            *(f"{sizes[at].bytes[name] / 1e6:.2f} MB" for at in (0, WARM_UP, -1)),
            f"{percent:+.1f} %",
            _word(percent <= TARGET_PERCENT),
        )
        for name, percent in percents.items()
    )
    _table(
        (
            "process",
            *(f"after {sizes[at].runs:,} runs" for at in (0, WARM_UP, -1)),
            "growth",
            f"target ≤ {TARGET_PERCENT:g} %",
        ),
        rows,
    )
    _say(f"\nRows of 3 cheap steps; sampled after retention. Keys of runs left at the end: {sizes[-1].keys_left}.")


def print_fairness(seen: Fairness) -> None:
    """What the single run saw."""
    met = _word(seen.started_s <= TARGET_S)
    _say(
        f"\nOne run beside {seen.waiting:,} waiting ones of another client: planned after {seen.planned_s:.2f} s, "
        f"first step after {seen.started_s:.2f} s (target {TARGET_S:g} s: {met}), "
        f"over after {seen.finished_s:.2f} s; alone {seen.alone_s:.2f} s."
    )


def print_batch(seen: BatchFigures) -> None:
    """A batch beside LiteLLM alone."""
    early, most = (size / 1e6 for size in seen.command_bytes)
    _say(
        f"\nA batch of {seen.rows:,} rows: {seen.rows / seen.ours_s:.0f} rows/s; LiteLLM alone {seen.rows / seen.bare_s:.0f}: "
        f"{seen.ratio:.2f} of it (target {BATCH_TARGET:g}: {_word(seen.ratio >= BATCH_TARGET)}). "
        f"The command: {early:.0f} MB after a tenth of the rows, {most:.0f} MB at most; "
        f"Redis keeps {seen.kept_bytes:.1f} bytes a delivered row."
    )


def print_schedules(seen: ScheduleFigures) -> None:
    """Schedules at rest and due."""
    median_s, most_s = seen.late_s
    _say(
        f"\n{seen.schedules:,} schedules at rest: a sweep takes {seen.rest_ms:.2f} ms, without any {seen.empty_ms:.2f} ms; "
        f"Redis keeps {seen.kept_bytes:,.0f} bytes a schedule. Runs that are due start {median_s:.2f} s late, {most_s:.2f} s at most "
        f"(target {MAX_LATE_S:g} s: {_word(most_s <= MAX_LATE_S)})."
    )


def print_agents(figures: Sequence[Figure]) -> None:
    """What agents cost around their model calls."""
    _say("")
    rows = ((each.name, _amount(each, each.ours), _amount(each, each.bare), *_verdict(each)) for each in figures)
    _table(("agents", "Cantata", "LiteLLM alone", "target", "held against it", ""), rows)
    _say("\nOne agents worker, scripted models in another process; medians, both sides in turns.")


def print_turns(turns: Turns) -> None:
    """What turns cost around their model calls."""
    _say("")
    head = (
        f"{turns.rates[0].turns} turns at once",
        "turns/s",
        "LiteLLM alone",
        "plain Celery",
        "of LiteLLM alone",
        "of plain Celery",
    )
    _table(head, map(_rate_row, turns.rates))
    _say("")
    _table(("one turn after the other, p50", "Cantata", "LiteLLM alone", "more"), map(_latency_row, turns.latencies))
    kept = turns.kept
    _say(
        f"\n{kept.sessions} sessions, {kept.turns:,} turns: {kept.a_second:.0f} turns/s; {kept.entry_bytes:.0f} bytes an entry, "
        f"{kept.session_bytes:.0f} a session with all its entries; {kept.turn_bytes / 1000:.1f} kB a turn until its retention is over."
    )
    _say(
        f"One agents worker, prefork {PROCESSES} for plain Celery, scripted models without delay in another process; medians."
    )


def print_workflows(workflows: Workflows) -> None:
    """What workflows, conductors and groups cost around their model calls; parked runs, and forks."""
    _say("")
    rows = ((rate.name, f"{rate.a_second(rate.ours_s):.0f}", *_against_bare(rate)) for rate in workflows.rates)
    _table((f"{workflows.rates[0].turns} at once", "turns/s", "LiteLLM alone", "of LiteLLM alone"), rows)
    _say("")
    _table(("one after the other, p50", "Cantata", "LiteLLM alone", "more"), map(_latency_row, workflows.latencies))
    parked, forked = workflows.parked, workflows.forked
    _say(
        f"\n{parked.runs} runs that wait for a person: {parked.run_bytes / 1000:.2f} kB each; "
        f"{parked.signals_a_second:.0f} a second signalled and over. "
        f"A fork of a run of {forked.steps:,} steps, from the last: made in {_ms(forked.made_ms)}, over after {_ms(forked.over_ms)}."
    )
    _say("One agents worker, scripted models without delay in another process; medians.")


def print_neighbours(measured: Sequence[Beside]) -> None:
    """What tasks of the user's own application cost as steps of runs."""
    _say("")
    head = ("tasks of an application", "as steps of Cantata", "its own canvas", "ours/theirs")
    rows = ((each.shape.name, _ms(each.ours.ms), _ms(each.theirs.ms), f"{each.ratio:.2f}") for each in measured)
    _table(head, rows)
    _say(
        f"\nRow of 10: target ≤ {TARGET_RATIO:g}, {_word(measured[0].ratio <= TARGET_RATIO)}. One worker of the application, "
        f"prefork {PROCESSES}, Celery's own settings, results in Redis; medians, both sides in turns."
    )


def print_code(measured: CodeFigures) -> None:
    """What workflows in Python cost beside chains of the same steps."""
    _say("")
    head = ("workflows in Python", "workflow", "chain", "workflow/chain")
    _table(head, ((each.shape, _ms(each.code.ms), _ms(each.chain.ms), f"{each.ratio:.2f}") for each in measured.shapes))
    _say(
        f"\nTarget ≤ {TARGET_CODE_RATIO:g} each, {_word(all(each.ratio <= TARGET_CODE_RATIO for each in measured.shapes))}. "
        f"{LONG:,} awaits in a row: {measured.long_ms / LONG:.2f} ms each. "
        f"A run that waits for a person: {measured.parked_bytes / 1000:.1f} kB."
    )


def print_scale(scale: Scale) -> None:
    """What Redis does at rest, and what a sweep, a worker's start and live events take then."""
    _say("")
    rows = (
        (rest.what, f"{rest.percent:.1f} %", f"{sum(rest.calls.values()):,.0f}", _most(rest.calls))
        for rest in scale.rests
    )
    _table(("at rest", "Redis, of a core", "calls/s", "most"), rows)
    last, worker, slowest = scale.rests[-1], scale.worker, max(scale.sweeps_ms)
    _say(
        f"\nTarget ≤ {TARGET_REST_PERCENT:g} %: {_word(last.percent <= TARGET_REST_PERCENT)}. The process of the followers: "
        f"{last.followers_percent:.1f} % of a core. A parked run: {scale.run_bytes / 1000:.2f} kB."
    )
    _say(
        f"A sweep: {_ms(scale.sweeps_ms)}, at most {slowest:.1f} ms (target ≤ {TARGET_SWEEP_MS:g} ms: "
        f"{_word(slowest <= TARGET_SWEEP_MS)}); its slowest script: {scale.slowest_script_ms:.2f} ms."
    )
    _say(
        f"Another worker: announced after {worker.start_s:.2f} s ({_most(worker.start_calls)}); "
        f"at rest {sum(worker.calls.values()):.1f} calls/s ({_most(worker.calls)}), which take Redis {worker.executed_ms:.3f} ms/s: "
        f"of {WORKERS:,} such workers {worker.executed_ms * WORKERS / 10:.1f} % of a core, without its work for their connections."
    )
    _say(
        f"An event reaches its follower after {_ms(scale.idle_ms)} in an idle stream, {_ms(scale.active_ms)} in an active one; medians."
    )


def print_capacity(costs: Sequence[Cost]) -> None:
    """What a run costs each process."""
    groups = ("redis", "broker", *CAPACITY_WORKERS, "gateway")
    _say("")
    rows = (
        (
            cost.workload,
            cost.redis,
            str(cost.processes),
            f"{cost.runs_per_second:,.0f}",
            *(f"{cost.cpu_ms[group]:.2f}" if group in cost.cpu_ms else "" for group in groups),
        )
        for cost in costs
    )
    _table(("workload", "Redis", "tools", "runs/s", *(f"{group}, ms/run" for group in groups)), rows)
    _say(
        f"\nProcessor time of a run; {_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end."
    )


def _most(calls: Mapping[str, float]) -> str:
    """Return the most frequent commands."""
    return ", ".join(
        f"{name} {number:,.{0 if number >= 10 else 1}f}"
        for name, number in sorted(calls.items(), key=lambda e: -e[1])[:6]
    )


def print_comparison(engines: Sequence[Engine]) -> None:
    """Everyone, a column each; in brackets the part of Cantata's figure."""
    ours = engines[0].samples
    _say("")
    rows = (
        (figure, *(_beside(figure, each.samples.get(figure), ours[figure]) for each in engines)) for figure in FIGURES
    )
    _table(("medians", *(each.name for each in engines)), rows)
    for each in engines:
        _say(f"\n{each.name}: {each.how}{f'; {each.missing}' if each.missing else ''}.")
    _say(
        f"\n{ROUNDS} rounds, one engine at a time; {_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end."
    )


def _beside(figure: str, samples: Sequence[float] | None, ours: Sequence[float]) -> str:
    if not samples:
        return "not measured"
    median, unit = statistics.median(samples), {"parked": "kB", "recovery": "s", "memory": "MB"}.get(figure, "ms")
    amount = median if unit in ("ms", "MB") else median / 1000
    return f"{amount:,.{0 if amount >= 100 else 1}f} {unit} ({median / statistics.median(ours):.2f})"


def _against_bare(rate: Rate) -> tuple[str, str]:
    ours, alone = rate.a_second(rate.ours_s), rate.a_second(rate.bare_s)
    return f"{alone:.0f}", _part(ours, alone)


def _rate_row(rate: Rate) -> tuple[str, ...]:
    sides = (rate.ours_s, rate.bare_s, rate.celery_s)
    ours, *others = (rate.a_second(samples) if samples else None for samples in sides)
    assert ours is not None
    return (
        rate.name,
        f"{ours:.0f}",
        *(f"{other:.0f}" if other else "" for other in others),
        *(_part(ours, other) for other in others),
    )


def _part(ours: float, other: float | None) -> str:
    return f"{ours / other:.2f}" if other else ""


def _latency_row(latency: Latency) -> tuple[str, ...]:
    ours, alone = (statistics.median(samples) for samples in (latency.ours_ms, latency.bare_ms))
    return (latency.name, f"{ours:.1f} ms", f"{alone:.1f} ms", f"{ours - alone:.1f} ms")


def _amount(figure: Figure, samples: Sequence[float]) -> str:
    return _in_unit(figure, statistics.median(samples)) if samples else "none"


def _in_unit(figure: Figure, value: float) -> str:
    return f"{value:.{2 if value < 10 else 0}f} {figure.unit}"


def _verdict(figure: Figure) -> tuple[str, ...]:
    if figure.held == "times":
        target, told = f"≤ {figure.target:g} times", f"{figure.told:.2f} times"
    else:
        over = " more" if figure.held else ""
        target, told = f"≤ {figure.target:g} {figure.unit}{over}", f"{_in_unit(figure, figure.told)}{over}"
    return target, told, _word(figure.told <= figure.target)


def machine() -> dict[str, JsonValue]:
    """This machine, and how busy it is now."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": list(os.getloadavg()),
    }


def write_json(file: str, measured: Mapping[str, JsonValue]) -> None:
    """All that was measured, and on which commit it ended: if that is not the one it began on, the figures are of no one tree."""
    Path(file).write_text(
        json.dumps({**measured, "cantata_commit_at_end": _commit()}, indent=2, ensure_ascii=False) + "\n", "utf-8"
    )


def raw_shapes(results: Mapping[str, Mapping[str, Samples]]) -> dict[str, JsonValue]:
    """The samples of each shape and way."""
    return {name: {way: asdict(sample) for way, sample in samples.items()} for name, samples in results.items()}


def server_of(redis: Redis) -> dict[str, str]:
    """Which server it is."""
    info = redis.info("server")
    words = {"server": "server_name", "redis_version": "redis_version", "valkey_version": "valkey_version"}
    return {name: str(info[field]) for name, field in words.items() if field in info}


def versions() -> dict[str, JsonValue]:
    """What is measured, and with what."""
    packages = {name: version(name) for name in ("celery", "kombu", "redis", "litellm", "cantata")}
    return {"python": platform.python_version(), **packages, "cantata_commit": _commit()}


def _commit() -> str:
    """The commit measured, with '+' if files differ from it."""
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit


def _processor() -> str:
    return platform.processor() or platform.machine()


def _word(met: bool) -> str:
    return "met" if met else "missed"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    rows = [head, *body]
    widths = [max(len(line[column]) for line in rows) for column in range(len(head))]
    for line in rows:
        _say("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if line is head:
            _say("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
