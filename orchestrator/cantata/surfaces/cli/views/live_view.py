"""Live view of a run on a terminal: its tree, rendered ten times a second."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cantata.client.records import now
from cantata.client.runs import Run
from cantata.client.view import MapProgress, RunView, StepProgress
from cantata.flows.wire import RUN_OVER
from cantata.surfaces.cli.views.run_tree import Row, rows
from cantata.text import text_format

MAX_ROWS = 30
MAX_WARNINGS = 3
MAX_WARNING = 600  # characters; a mismatch of code has two lines of it, and what to do
MAX_TAIL = 80  # characters of a reply under way
RESERVED_LINES = 5  # of the terminal, for title, warnings and prompt
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

SIGNS: Mapping[str, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "ready": ("·", "dim"),
    "sent": ("·", "dim"),
    "expanded": ("▸", "dim"),
    "waiting_signal": ("?", "magenta"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "timed_out": ("✗", "yellow"),
    "stopped": ("-", "dim"),
}
"""State of a step → its sign and style; a running step has a spinner."""
RETRIED_SIGN = ("↻", "yellow")

REFRESH_S = 0.1


def watch(run: Run) -> None:
    """Show a run until it is over."""
    console = Console(stderr=True, highlight=False)
    max_rows = max(5, min(MAX_ROWS, console.height - RESERVED_LINES))
    with Live(console=console, auto_refresh=False) as live:
        view = None
        while view is None or view.status not in RUN_OVER:
            view = run.view(view, wait_s=REFRESH_S)
            live.update(render(view, now() * 1000, max_rows=max_rows), refresh=True)


def render(view: RunView, now_ms: float, *, max_rows: int = MAX_ROWS) -> RenderableType:
    """Return the tree as it is at a moment."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=44)
    table.add_column(no_wrap=True, justify="right", min_width=8)
    table.add_column(overflow="ellipsis")  # the one that is cut if not all fits
    for row in rows(view, max_rows=max_rows):
        table.add_row(*_cells(row, view, now_ms))
    lines = [*view.warnings[-MAX_WARNINGS:], *[*dict.fromkeys(view.blocked.values())][-MAX_WARNINGS:]]
    warnings = [Text(f"! {text_format.line(warning, MAX_WARNING)}", style="yellow") for warning in lines]
    return Group(_title(view, now_ms), table, *warnings)


def _title(view: RunView, now_ms: float) -> Text:
    end_ms = view.at_ms if view.status in RUN_OVER else now_ms
    took = text_format.duration(max(0.0, end_ms - view.began_ms)) if view.began_ms else ""
    return Text(
        " · ".join(part for part in (f"run {view.run_id}", text_format.state_label(view.state), took) if part),
        style="bold",
    )


def _cells(row: Row, view: RunView, now_ms: float) -> tuple[RenderableType, RenderableType, RenderableType]:
    if row.folded:
        return Text(f"… {row.folded:,} {row.name}", style="dim"), Text(""), Text("")
    step = row.step
    is_running = step.state == "running" or (step.items is not None and step.state == "expanded")
    sign, style = (
        (SPINNER[int(now_ms / 100) % len(SPINNER)], "cyan")
        if is_running
        else RETRIED_SIGN
        if step.is_retried
        else SIGNS[step.state]
    )
    name = Text.assemble(
        "  " * row.depth, (sign, style), " ", (text_format.line(row.name, 60), "dim" if style == "dim" else "")
    )
    return name, Text(_time(step, now_ms), style="dim"), _progress(step.items, step.note) if step.items else _note(step)


def _time(step: StepProgress, now_ms: float) -> str:
    if step.took_ms is not None:
        return text_format.duration(step.took_ms)
    is_open = step.since_ms and step.state in ("running", "expanded", "waiting_signal")
    return text_format.duration(max(0.0, now_ms - step.since_ms)) if is_open else ""


def _note(step: StepProgress) -> Text:
    attempt, tokens = (
        f"attempt {step.attempt}" if step.attempt > 1 else "",
        text_format.tokens(step.tokens_in, step.tokens_out),
    )
    parts = [step.line, attempt, step.model, tokens]
    fixed = {"stopped": "stopped", "timed_out": "timed out"}
    note = fixed.get(step.state, text_format.line(step.note, 200))
    if step.state == "waiting_signal":
        note = f"waiting for a signal{note and f': {note}'}"
    if step.state == "running" and step.reply:
        note = _tail(step.reply)
    style = "red" if step.state == "failed" else "yellow" if step.is_retried else "dim"
    return Text("  ", no_wrap=True).join(
        [
            *(Text(text_format.line(part), style="dim") for part in parts if part),
            *([Text(note, style=style)] if note else []),
        ]
    )


def _tail(reply: str) -> str:
    """Return the end of a reply under way, as much as fits in a line."""
    text = text_format.line(reply, len(reply))
    return text if len(text) <= MAX_TAIL else f"…{text[1 - MAX_TAIL :]}"


def _progress(items: MapProgress, note: str) -> RenderableType:
    counts = Table.grid(padding=(0, 2, 0, 0))
    counts.add_column(width=24)
    counts.add_column(no_wrap=True, overflow="ellipsis")
    text = Text(f"{items.over:,}/{items.total:,}")
    if items.running:
        text.append(f"  {len(items.running):,} running", style="dim")
    if items.failed:
        text.append(f"  {items.failed:,} failed", style="red")
        text.append(f"  {text_format.line(note, 120)}", style="dim")
    counts.add_row(ProgressBar(total=max(1, items.total), completed=items.over, width=24), text)
    return counts
