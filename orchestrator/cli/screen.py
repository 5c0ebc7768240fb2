"""A run on a terminal: its tree, painted anew ten times a second while it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator import words
from orchestrator.cli.rows import Row, rows
from orchestrator.cli.view import Seen, View, apply, learn, unknown
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import RUN_OVER, RunEvent

MOST_ROWS = 30
MOST_WARNINGS = 3
MOST_TAIL = 80  # characters of a reply that is coming
AROUND = 5  # lines of the terminal that are not for the tree: title, warnings, prompt
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

LOOKS: Mapping[str, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "grown": ("▸", "dim"),
    "retry": ("↻", "yellow"),
    "lost": ("↻", "yellow"),
    "asking": ("?", "magenta"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "timed_out": ("✗", "yellow"),
    "stopped": ("-", "dim"),
}
"""State of a step → its sign and style; what runs turns."""

Events = Callable[[int], list[RunEvent]]
"""The events after an offset that come within a tenth of a second."""

Infos = Callable[[list[str]], Mapping[str, Mapping[str, JsonValue]]]
"""How steps ended, by id."""


def watch(view: View, events: Events, infos: Infos, *, ahead_ms: float = 0.0) -> View:
    """Show a run until it is over; `ahead_ms` is how far Redis's clock is ahead of ours."""
    console = Console(stderr=True, highlight=False)
    most = max(5, min(MOST_ROWS, console.height - AROUND))
    with Live(console=console, auto_refresh=False) as live:
        while view.status not in RUN_OVER:
            view = apply(view, *events(view.seq))
            ended = unknown(view)
            view = learn(view, infos(ended)) if ended else view
            live.update(paint(view, time.time() * 1000 + ahead_ms, most=most), refresh=True)
    return view


def paint(view: View, now_ms: float, *, most: int = MOST_ROWS) -> RenderableType:
    """The tree as it is at this moment."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=44)
    table.add_column(no_wrap=True, justify="right", min_width=8)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for row in rows(view, most=most):
        table.add_row(*_cells(row, view, now_ms))
    warnings = [Text(f"! {words.line(warning, 300)}", style="yellow") for warning in view.warnings[-MOST_WARNINGS:]]
    return Group(_title(view, now_ms), table, *warnings)


def _title(view: View, now_ms: float) -> Text:
    end_ms = view.at_ms if view.status in RUN_OVER else now_ms
    took = words.duration(max(0.0, end_ms - view.began_ms)) if view.began_ms else ""
    return Text(" · ".join(part for part in (f"run {view.run_id}", words.spoken(view.state), took) if part), style="bold")


def _cells(row: Row, view: View, now_ms: float) -> tuple[RenderableType, RenderableType, RenderableType]:
    if row.folded:
        return Text(f"… {row.folded:,} {row.name}", style="dim"), Text(""), Text("")
    seen = row.seen
    is_turning = seen.word == "running" or (seen.tally is not None and seen.word == "grown")
    sign, style = (FRAMES[int(now_ms / 100) % len(FRAMES)], "cyan") if is_turning else LOOKS[seen.word]
    name = Text.assemble("  " * row.depth, (sign, style), " ", (words.line(row.name, 60), "dim" if style == "dim" else ""))
    return name, Text(_time(seen, now_ms), style="dim"), _tally(seen) if seen.tally else _note(seen)


def _time(seen: Seen, now_ms: float) -> str:
    if seen.took_ms is not None:
        return words.duration(seen.took_ms)
    return words.duration(max(0.0, now_ms - seen.since_ms)) if seen.since_ms and seen.word in ("running", "grown", "asking") else ""


def _note(seen: Seen) -> Text:
    parts = [f"attempt {seen.attempt}" if seen.attempt > 1 else "", seen.model, words.tokens(seen.tokens_in, seen.tokens_out)]
    note = {"asking": "waiting for a signal", "stopped": "stopped", "timed_out": "timed out"}.get(seen.word, words.line(seen.note, 200))
    if seen.word == "running" and seen.said:
        note = _tail(seen.said)
    style = "red" if seen.word == "failed" else "yellow" if seen.word in ("retry", "lost") else "dim"
    return Text("  ").join([*(Text(words.line(part), style="dim") for part in parts if part), *([Text(note, style=style)] if note else [])])


def _tail(said: str) -> str:
    """The end of what is being said, as far as a line has room."""
    text = words.line(said, len(said))
    return text if len(text) <= MOST_TAIL else f"…{text[1 - MOST_TAIL :]}"


def _tally(seen: Seen) -> RenderableType:
    tally = seen.tally
    assert tally is not None
    counts = Table.grid(padding=(0, 2, 0, 0))
    counts.add_column(width=24)
    counts.add_column(no_wrap=True, overflow="ellipsis")
    text = Text(f"{tally.over:,}/{tally.total:,}")
    if tally.running:
        text.append(f"  {len(tally.running):,} running", style="dim")
    if tally.failed:
        text.append(f"  {tally.failed:,} failed", style="red")
        text.append(f"  {words.line(seen.note, 120)}", style="dim")
    counts.add_row(ProgressBar(total=max(1, tally.total), completed=tally.over, width=24), text)
    return counts
