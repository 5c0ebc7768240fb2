"""Runs a batch from a file to a file, with a progress bar; another command may go on with it at any time."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from cantata.client.records import Batches, BatchFeed, BatchInfo, BatchRow, BatchTarget
from cantata.errors import ConfigError
from cantata.surfaces.cli.batch_files import ResultFile, RowFile
from cantata.surfaces.cli.connection import ServiceConnection, is_terminal, print_note
from cantata.surfaces.cli.main import FAILED, INTERRUPTED
from cantata.text import text_format

GROUP_S = 0.2  # how long results are collected before they are written and recorded together
LINE_S = 10.0  # between lines of progress without a terminal
SHOWN = 5  # results of a sample that are shown


def submit_file(
    connection: ServiceConnection,
    file: str,
    target: BatchTarget,
    *,
    labels: Mapping[str, str],
    out: str = "-",
    name: str | None = None,
    sample: int | None = None,
    assume_yes: bool = False,
    as_json: bool = False,
    **options: Any,
) -> int:
    """Run the rows of a file with the options of `Client.batch`, or go on with them, and return the exit status."""
    source, results = RowFile(file), ResultFile(out)
    if sample and file == "-":
        raise ConfigError("--sample asks a question on standard input, which FILE - reads; name a file", source="batch")
    if sample and options.get("mode") == "provider":
        raise ConfigError(
            "--sample asks after some results, which take hours with --mode provider; try a few rows without --mode"
        )
    name = name or _name_of(file)
    total = source.count()
    batches = connection.client.batches.of(labels.get("tenant", ""))
    if results.exists and batches.known(name) is None:
        raise ConfigError(
            f"{out} exists, and there is no batch {name!r} that began it; delete it, or name another --out",
            source="batch",
        )
    connection.print_fleet_warnings()
    feed = connection.client.feed_batch(
        source.rows(),
        name=name,
        labels=labels,
        group_s=GROUP_S,
        source=source.digest,
        out="-" if out == "-" else str(Path(out).resolve()),
        file="-" if file == "-" else str(Path(file).resolve()),
        **{target.kind: target.name},
        **options,
    )
    with closing(results):
        if feed.batch.state != "done":
            results.open(feed.batch.out_bytes, feed.batch.round)
        try:
            if sample and not feed.batch.delivered:
                shown = _work(feed, results, total, stop_after=sample)
                if feed.batch.state == "running" and not _goes_on(feed, shown, total, assume_yes):
                    print_note(f"{feed.batch.delivered} rows are done; go on with the same command")
                    return 0
            _work(feed, results, total)
        except KeyboardInterrupt:
            print_note(f"interrupted after {feed.batch.delivered:,} rows; go on with the same command")
            return INTERRUPTED
    if feed.batch.state == "done":
        results.finish(ordered=feed.batch.ordered)
    return _print_end(feed.batch, as_json=as_json and out != "-")


def retry_file(
    connection: ServiceConnection, batches: Batches, name: str, labels: Mapping[str, str], *, as_json: bool
) -> int:
    """Run the failed rows of a batch that is done again, and put their results in place of the failures; return the exit status."""
    batch = batches.find(name)
    if not batch.file or batch.file == "-":
        raise ConfigError(
            f"the rows of batch {name!r} are in no file; give them again where it was begun", source="batch"
        )
    if batch.state == "done" and batch.failed:
        if RowFile(batch.file).digest != batch.source:
            raise ConfigError(f"{batch.file} has changed since batch {name!r} was begun; put it back", source="batch")
        is_retried = bytearray(batch.submitted)
        for row in batches.failed_rows(batch):
            is_retried[row] = 1
        size = ResultFile(batch.out).prepare_retry(lambda row: bool(is_retried[row]), batch.round + 1)
        batches.retry(name, out_bytes=size)
    elif batch.state != "running" or not batch.round:
        batches.retry(name)  # raises what is wrong
    return submit_file(
        connection,
        batch.file,
        batch.target,
        out=batch.out,
        name=name,
        mode=batch.mode,
        columns=batch.columns,
        ordered=batch.ordered,
        concurrency=batch.concurrency,
        budget_usd=batch.budget_usd,
        labels={**batch.labels, **labels},
        webhooks=batch.webhooks,
        as_json=as_json,
    )


def describe(batch: BatchInfo) -> str:
    """Return a batch in a line."""
    if batch.unreadable:
        return f"{batch.name:20}  {batch.state:12}  {batch.unreadable}"
    total = f" of {batch.total:,}" if batch.total is not None else ""
    failed = f"{batch.failed:,} failed" if batch.failed else ""
    began = text_format.moment(batch.created_at)
    rows = f"{batch.delivered:,}{total} rows"
    parts = (f"{batch.target.kind} {batch.target.name}", began, rows, failed, text_format.usage(batch.usage))
    return f"{batch.name:20}  {text_format.state_label(batch.outcome):12}  " + " · ".join(filter(None, parts))


def _name_of(file: str) -> str:
    return f"stdin-{uuid4().hex[:8]}" if file == "-" else re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem)[:100]


def _work(feed: BatchFeed, results: ResultFile, total: int | None, stop_after: int | None = None) -> Sequence[BatchRow]:
    """Write and deliver results until the feed ends, and show its progress; return the first results."""
    progress = _Progress(feed, total)
    first: list[BatchRow] = []
    with progress.bar, closing(feed.groups(stop_after)) as groups:
        for rows in groups:
            if rows:
                feed.deliver(rows, out_bytes=results.append(rows))
                first += rows[: SHOWN - len(first)]
            progress.show()
    return first


class _Progress:
    """The progress of a feed: a bar on a terminal, else a line now and then."""

    def __init__(self, feed: BatchFeed, total: int | None) -> None:
        self._feed, self._total = feed, total
        self._began, self._delivered = time.monotonic(), feed.batch.delivered
        self._shown_at = self._began
        console = Console(stderr=True, force_terminal=is_terminal())
        self.bar = Progress(
            BarColumn(), TextColumn("{task.description}", markup=False), console=console, disable=not is_terminal()
        )
        self._task = self.bar.add_task("", total=total)

    def show(self) -> None:
        """Show how far the feed is."""
        batch, now = self._feed.batch, time.monotonic()
        self.bar.update(self._task, completed=batch.delivered, description=self._line(batch, now - self._began))
        if self.bar.disable and now - self._shown_at >= LINE_S:
            self._shown_at = now
            print_note(self._line(batch, now - self._began))

    def _line(self, batch: BatchInfo, took_s: float) -> str:
        rate = (batch.delivered - self._delivered) / took_s if took_s else 0.0
        left = None if self._total is None else self._total - batch.delivered
        cost = estimated_cost(batch, self._total)
        parts = [
            f"{batch.delivered:,}" + ("" if self._total is None else f" of {self._total:,}") + " rows",
            f"{rate:.1f}/s",
            f"{batch.failed:,} failed" if batch.failed else "",
            text_format.usage(batch.usage),
            "" if cost is None else f"about {text_format.cost(cost)} in all",
            f"{text_format.duration(1000 * left / rate)} left" if left and rate else "",
            self._feed.note,
        ]
        return " · ".join(filter(None, parts))


def estimated_cost(batch: BatchInfo, total: int | None) -> float | None:
    """Return what all rows of a batch will cost, if the others cost as those that were delivered; None if that is not known."""
    if batch.usage.cost_usd is None or not batch.priced or total is None or not batch.delivered:
        return None  # rows that failed or were cached tell no price
    return batch.usage.cost_usd / batch.delivered * max(total, batch.delivered)


def _goes_on(feed: BatchFeed, shown: Sequence[BatchRow], total: int | None, assume_yes: bool) -> bool:
    """Show the results of a sample and what the rest will cost, and ask whether to go on."""
    for row in shown:
        click.echo(
            f"row {row.row}: {text_format.line(str(row.error.message if row.error else row.output), 120)}", err=True
        )
    batch = feed.batch
    rest = (total or 0) - batch.delivered
    cost = estimated_cost(batch, total)
    price = (
        "a cost that is not known" if cost is None else f"about {text_format.cost(cost - (batch.usage.cost_usd or 0))}"
    )
    used = text_format.usage(batch.usage) or "no tokens used"
    print_note(f"{batch.delivered:,} rows, {batch.failed:,} failed, {used}; the other {rest:,} rows: {price}")
    return assume_yes or click.confirm("go on?", err=True)


def _print_end(batch: BatchInfo, *, as_json: bool) -> int:
    """Print how a batch ended, and return the exit status."""
    if as_json:
        click.echo(batch.model_dump_json())
    else:
        print_note(describe(batch))
    if batch.state == "budget_spent":
        print_note(
            f"its budget of ${batch.budget_usd:g} is spent: to go on, use the same command with a higher --budget-usd"
        )
    elif batch.state == "cancelled":
        print_note("it was cancelled; rows that are not done stay undone")
    elif batch.failed and batch.file and batch.file != "-":
        print_note(f"to run the failed rows again: submit batch retry {batch.name}")
    return 0 if batch.state == "done" and not batch.failed else FAILED
