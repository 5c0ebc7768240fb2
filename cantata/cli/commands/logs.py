"""`submit logs`: the log lines of a run."""

from __future__ import annotations

import click

from cantata.cli.connect import open_queries
from cantata.cli.options import json_option

LEVELS = ("debug", "info", "warning", "error", "critical")


@click.command()
@click.argument("run_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Also print lines to come, until the run is over.")
@click.option("--step", metavar="STEP", help="Only lines of this step and of its expansion.")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), help="Only lines of this level or above.")
@json_option
def logs(run_id: str, follow: bool, step: str | None, level: str | None, as_json: bool) -> int:
    """Show the log lines of a run, from workers and tools on all machines. With --json: one line of JSON for each."""
    with open_queries(workers=follow, as_json=as_json) as queries:
        return queries.logs(run_id, follow=follow, step=step, level=level)
