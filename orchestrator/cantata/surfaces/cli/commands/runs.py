"""`submit runs` and `submit logs`: earlier runs, and their log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.options import author_option, detach_option, json_option, parse_assignments, parse_json_object

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LEVELS = ("debug", "info", "warning", "error", "critical")


@click.group()
def runs() -> None:
    """List, show, follow, export and cancel runs, read results, send signals, fork and retry."""


run_id = click.argument("run_id", metavar="ID")
some_ids = click.argument("run_ids", metavar="[ID...]", nargs=-1)
yes_option = click.option("--yes", is_flag=True, help="Do not ask before runs that were not named by their ids.")


def parse_age(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the time that was `text` ago, in seconds since 1970."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    if not (number.isdecimal() and number.isascii() and unit in UNITS_S):
        raise click.BadParameter(f"expected a number with its unit, such as 90s, 30m, 1h or 7d, not {text!r}")
    return max(1.0, time.time() - int(number) * UNITS_S[unit])


def filter_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that choose runs: `statuses`, `kind`, `text` and `since`."""
    kinds = click.Choice(["turn", "chain", "webhook"])
    text = "Only runs with this text in their id, session, labels, team, agent or chain, or early in the text of a turn (120 characters)."
    for option in (
        click.option(
            "--since",
            callback=parse_age,
            metavar="AGE",
            help="Only runs that were submitted since then: 90s, 30m, 1h, 7d.",
        ),
        click.option("--search", "text", default="", metavar="TEXT", help=text),
        click.option("--kind", type=kinds, help="Only runs of this kind; without it, none that post to webhooks."),
        click.option(
            "--status",
            "statuses",
            multiple=True,
            metavar="STATUS",
            help="Only runs with this status; may be given several times.",
        ),
    ):
        command = option(command)
    return command


@runs.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many, the newest first."
)
@filter_options
@click.option("--before", metavar="ID", help="Only runs that were submitted before this one.")
@json_option
def list_(limit: int, before: str | None, as_json: bool, **filters: Any) -> int:
    """List runs, the newest first."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.list_runs(connection, limit, behind=before, **filters)


@runs.command()
@run_id
@json_option
def show(run_id: str, as_json: bool) -> int:
    """Show a run with all its steps, as they are now."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.show(connection, run_id)


@runs.command()
@run_id
@click.option("--from", "since", type=click.IntRange(0), metavar="OFFSET", help="Only show events after this one.")
@json_option
def follow(run_id: str, since: int | None, as_json: bool) -> int:
    """Show a run until it is over, then its result. With --json: one event a line."""
    with connect_to_kept(workers=True, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.follow(connection, run_id, since)


@runs.command()
@run_id
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer; then show the result so far."
)
@json_option
def result(run_id: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a run is over, and show its result."""
    with connect_to_kept(workers=True, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.result(connection, run_id, timeout)


@runs.command()
@run_id
def export(run_id: str) -> int:
    """Print a run as one JSON document.

    It has the request, the definitions, and each step with its attempts and its model and tool calls, as far as they are kept.
    """
    with connect_to_kept(workers=False, as_json=False) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.export(connection, run_id)


@runs.command()
@some_ids
@filter_options
@yes_option
@json_option
def cancel(run_ids: tuple[str, ...], yes: bool, as_json: bool, **filters: Any) -> int:
    """Cancel runs, by their ids or all that the options leave; their workers stop their work on them."""
    _check_choice(run_ids, filters)
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        chosen = run_ids or run_commands.choose(connection, "Cancel", filters, yes=yes)
        return run_commands.cancel(connection, chosen)


@runs.command()
@run_id
@click.option(
    "--from",
    "from_step",
    required=True,
    metavar="STEP",
    help="The first step to run again: a node, or an id in the output of `show`.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    callback=parse_assignments,
    metavar="input.KEY=VALUE",
    help="Change the input for the steps that run again; VALUE is JSON, or a text.",
)
@detach_option
@json_option
def fork(run_id: str, from_step: str, changes: dict[str, Any], detach: bool, as_json: bool) -> int:
    """Run a closed run again from a step on, as a new run. Steps upstream keep their outcomes."""
    with connect_to_kept(workers=True, as_json=as_json) as connection:
        run = connection.runs.rerun(run_id, from_step, changes=changes)
        return connection.detach(run) if detach else connection.watch(run)


@runs.command()
@some_ids
@filter_options
@click.option("--again", is_flag=True, help="Also retry runs that were retried before.")
@yes_option
@detach_option
@json_option
def retry(run_ids: tuple[str, ...], again: bool, yes: bool, detach: bool, as_json: bool, **filters: Any) -> int:
    """Run the unfinished part of failed or cancelled runs again, each as a new run: by their ids, or all that the options leave."""
    _check_choice(run_ids, filters)
    with connect_to_kept(workers=True, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        chosen = run_ids or run_commands.choose(connection, "Retry", filters, yes=yes, again=again)
        return run_commands.retry(connection, chosen, again=again, detach=detach)


def _check_choice(run_ids: tuple[str, ...], filters: Mapping[str, Any]) -> None:
    if bool(run_ids) == any(filters.values()):
        raise click.UsageError("name the runs by their ids, or choose them by --status, --kind, --search and --since")


@runs.command()
@click.argument("words", metavar="[ID] STEP JSON", nargs=-1)
@filter_options
@yes_option
@author_option
@json_option
def signal(words: tuple[str, ...], yes: bool, by: str, as_json: bool, **filters: Any) -> int:
    """Send a waiting step its value: of the run ID, or of all runs that the options leave and in which STEP waits.

    A text needs no quotes where the schema of the step asks for one.
    """
    *run_ids, step, value = words if len(words) > 1 else ("", "", "")
    if len(words) - 2 != (0 if any(filters.values()) else 1):
        raise click.UsageError(
            "give ID STEP JSON, or STEP JSON and choose the runs by --status, --kind, --search and --since"
        )
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        chosen = run_ids or run_commands.choose_waiting(connection, step, filters, yes=yes)
        return max((run_commands.signal(connection, each, step, value, by) for each in chosen), default=0)


@runs.command()
@run_id
@click.argument("name")
@click.option(
    "--input", "given", metavar="JSON|@FILE", callback=parse_json_object, help="Its arguments, by name; none if absent."
)
@click.option("--step", metavar="ID", help="The step of the workflow, if the run has several.")
@json_option
def query(run_id: str, name: str, given: dict[str, Any] | None, step: str | None, as_json: bool) -> int:
    """Ask a workflow in Python a query, which its code registers with @wf.query.

    The code is imported and replayed here, so no worker is needed.
    """
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.query(connection, run_id, name, step, given or {})


@click.command()
@run_id
@click.option("--follow", is_flag=True, help="Also print lines to come, until the run is over.")
@click.option("--step", metavar="STEP", help="Only lines of this step and of its expansion.")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), help="Only lines of this level or above.")
@json_option
def logs(run_id: str, follow: bool, step: str | None, level: str | None, as_json: bool) -> int:
    """Show the log lines of a run, from workers and tools on all machines. With --json: one line of JSON for each."""
    with connect_to_kept(workers=follow, as_json=as_json) as connection:
        from cantata.surfaces.cli import run_commands

        return run_commands.logs(connection, run_id, follow=follow, step=step, level=level)
