"""`submit runs`: what was submitted before."""

from __future__ import annotations

from typing import Any

import click

from cantata.cli.connect import open_queries
from cantata.cli.options import as_json, assignments, detach, json_value


@click.group()
def runs() -> None:
    """List, show, follow, cancel runs; read their results; send them signals; fork and retry them."""


run_id = click.argument("run_id", metavar="ID")


@runs.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many, the newest first.")
@click.option("--status", "statuses", multiple=True, metavar="STATUS", help="Only runs that stand so; may be given several times.")
@click.option("--kind", type=click.Choice(["turn", "chain"]), help="Only runs of this kind.")
@click.option("--search", default="", metavar="TEXT", help="Only runs with this in their id, session, labels or what was asked.")
@click.option("--before", metavar="ID", help="Only runs that were submitted before this one.")
@as_json
def list_(limit: int, statuses: tuple[str, ...], kind: str | None, search: str, before: str | None, as_json: bool) -> int:
    """List runs, the newest first."""
    with open_queries(workers=False, as_json=as_json) as queries:
        return queries.list(limit, statuses=statuses, kind=kind, text=search, behind=before)


@runs.command()
@run_id
@as_json
def show(run_id: str, as_json: bool) -> int:
    """Show a run with all its steps, as it stands now."""
    with open_queries(workers=False, as_json=as_json) as queries:
        return queries.show(run_id)


@runs.command()
@run_id
@click.option("--from", "since", type=click.IntRange(0), metavar="OFFSET", help="Tell only what came after this event.")
@as_json
def follow(run_id: str, since: int | None, as_json: bool) -> int:
    """Watch a run until it is over, then show its answer. With --json: one event a line."""
    with open_queries(workers=True, as_json=as_json) as queries:
        return queries.follow(run_id, since)


@runs.command()
@run_id
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer; then show how far it is.")
@as_json
def result(run_id: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a run is over, and show its answer."""
    with open_queries(workers=True, as_json=as_json) as queries:
        return queries.result(run_id, timeout)


@runs.command()
@run_id
@as_json
def cancel(run_id: str, as_json: bool) -> int:
    """End a run; what its workers do for it is stopped."""
    with open_queries(workers=False, as_json=as_json) as queries:
        return queries.cancel(run_id)


@runs.command()
@run_id
@click.option("--from", "from_step", required=True, metavar="STEP", help="The step to begin with: a node, or an id that `show` tells.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    callback=assignments,
    metavar="input.KEY=VALUE",
    help="Change the input for what is done anew; VALUE is JSON, or a text.",
)
@detach
@as_json
def fork(run_id: str, from_step: str, changes: dict[str, Any], detach: bool, as_json: bool) -> int:  # fmt: skip
    """Do a run that is over anew from a step on, as a new run; what lies upstream is taken over."""
    with open_queries(workers=True, as_json=as_json) as queries:
        made = queries.fork(run_id, from_step, changes)
        return queries.detach(made) if detach else queries.watch(made)


@runs.command()
@run_id
@detach
@as_json
def retry(run_id: str, detach: bool, as_json: bool) -> int:
    """Do anew what a failed or cancelled run left unfinished, as a new run; the rest is taken over."""
    with open_queries(workers=True, as_json=as_json) as queries:
        made = queries.fork(run_id, None, {})
        return queries.detach(made) if detach else queries.watch(made)


@runs.command()
@run_id
@click.argument("step")
@click.argument("value", metavar="JSON", callback=json_value)
@as_json
def signal(run_id: str, step: str, value: Any, as_json: bool) -> int:
    """Give a waiting step its value."""
    with open_queries(workers=False, as_json=as_json) as queries:
        return queries.signal(run_id, step, value)
