"""`submit schedules`: runs that start by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import yaml

from cantata.operation.extras import check_extras
from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import (
    add_commands,
    config_option,
    json_option,
    label_option,
    name_argument,
    parse_json_object,
    tenant_option,
)
from cantata.text import text_format

if TYPE_CHECKING:
    from cantata.client.client import Client
    from cantata.flows.schedules import ScheduleView

OVERLAPS = ("skip", "queue", "cancel_previous", "allow")


@click.group()
def schedules() -> None:
    """List, apply, create, pause and trigger schedules, which start runs by themselves."""


@contextmanager
def _open(config: str | None = None) -> Iterator[Client]:
    with connect_to_kept(workers=False, config=config) as connection:
        yield connection.client


@schedules.command("list")
@tenant_option
@json_option
def list_(tenant: str, as_json: bool) -> int:
    """List the schedules by name, each with its next time and its last run."""
    with _open() as client:
        found = client.schedules.of(tenant).list()
    if as_json:
        click.echo(
            json.dumps([each.model_dump(mode="json", exclude_defaults=True) for each in found], ensure_ascii=False)
        )
    elif not found:
        click.echo("there are no schedules; `submit schedules apply` creates those of the configuration", err=True)
    for each in () if as_json else found:
        last = each.unreadable or (f"last {each.runs[0].status or 'expired'}" if each.runs else "no runs")
        following = _moment(each.next_at[0]) if each.next_at else each.state
        click.echo(
            f"{each.name:24}  {following:16}  {text_format.line(each.timing, 36):36}  {text_format.line(each.target, 40):40}  {last}"
        )
    return 0


@schedules.command()
@name_argument
@click.option("--cron", metavar="FIELDS", help="Minute, hour, day, month and weekday, such as '0 7 * * mon-fri'.")
@click.option("--every", metavar="DURATION", help="Such as 10m or 1h30m.")
@click.option("--at", metavar="TIME", help="One date and time, such as 2030-05-01T09:00.")
@click.option("--timezone", metavar="NAME", help="Such as Europe/Berlin; UTC if absent.")
@click.option(
    "--turn", metavar="TEXT", help="The text of a turn. It and the input may have placeholders, such as {date}."
)
@click.option("--agent", metavar="NAME", help="The agent of the turn.")
@click.option("--team", metavar="NAME", help="The team of the turn.")
@click.option("--session", metavar="NAME", help="The session of the turn.")
@click.option("--chain", metavar="NAME", help="A chain of the configuration.")
@click.option("--workflow", metavar="NAME", help="A workflow in Python of the configuration.")
@click.option(
    "--input", "given", callback=parse_json_object, metavar="JSON|@FILE", help="The input of the chain or workflow."
)
@click.option("--overlap", type=click.Choice(OVERLAPS), help="While a run is open; skip if absent.")
@click.option("--catch-up", metavar="DURATION", help="How late a time may still be run; 1h if absent.")
@click.option("--jitter", metavar="DURATION", help="Delay each time by a part of this.")
@click.option("--note", help="For people.")
@label_option
@click.option("--replace", is_flag=True, help="Replace a schedule of this name.")
@config_option
@json_option
def create(
    name: str,
    turn: str | None,
    agent: str | None,
    team: str | None,
    session: str | None,
    given: dict[str, Any] | None,
    labels: dict[str, str],
    replace: bool,
    config: str | None,
    as_json: bool,
    **fields: Any,
) -> int:
    """Create a schedule. Its runs have the configuration as it is now."""
    named = {"text": turn, "agent": agent, "team": team, "session": session}
    if turn is None and (agent or team or session):
        raise click.UsageError("--agent, --team and --session belong to --turn TEXT")
    declared = {
        **fields, "turn": None if turn is None else {key: each for key, each in named.items() if each}, "input": given, "labels": labels
    }  # fmt: skip
    with _open(config) as client:
        given = {key: value for key, value in declared.items() if value is not None}
        return _print_one(client.schedules.of(labels.get("tenant", "")).create(name, given, replace=replace), as_json)


@schedules.command()
@config_option
@click.option("--yes", is_flag=True, help="Apply without a question.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@json_option
def apply(config: str | None, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Make the schedules be those that the configuration declares, after showing what changes.

    Schedules of all tenants are compared, by their label `tenant`. Those that calls created stay as they are.
    """
    with _open(config) as client:
        from cantata.client.records import describe

        changes = client.schedules.plan()
        lines = [line for change in changes for line in describe(change)]
        if as_json:
            fields = ("kind", "name", "tenant", "fields")
            click.echo(
                json.dumps(
                    [{field: getattr(change, field) for field in fields} for change in changes], ensure_ascii=False
                )
            )
        else:
            click.echo("\n".join(lines) or "the schedules are as the configuration declares them", err=not lines)
        if dry_run or not changes:
            return 0
        if not yes:
            click.confirm(f"Apply {text_format.counted(len(changes), 'change')}?", abort=True, err=True)
        client.schedules.apply(changes)
    return 0


@schedules.command()
@name_argument
@click.option("--note", default="", help="Why, for people.")
@tenant_option
@json_option
def pause(name: str, note: str, tenant: str, as_json: bool) -> int:
    """Pause a schedule: its times pass without a run."""
    with _open() as client:
        return _print_one(client.schedules.of(tenant).pause(name, note), as_json)


def _act(method: str, name: str, tenant: str, as_json: bool) -> int:
    with _open() as client:
        return _print_one(getattr(client.schedules.of(tenant), method)(name), as_json)


add_commands(
    schedules,
    _act,
    {
        "show": ("get", "Show a schedule with its next times and its last runs."),
        "resume": ("resume", "Have a paused schedule go on with its next time."),
    },
)


@schedules.command()
@name_argument
@tenant_option
@json_option
def trigger(name: str, tenant: str, as_json: bool) -> int:
    """Start a run of a schedule now, as its overlap allows."""
    with _open() as client:
        outcome, run_id = client.schedules.of(tenant).trigger(name)
    if as_json:
        click.echo(json.dumps({"outcome": outcome, "run_id": run_id}))
    elif run_id:
        click.echo(run_id)
    else:
        click.echo(f"{outcome}: a run of schedule {name!r} is open, or its session is full", err=True)
    return FAILED if outcome == "skipped" else 0


@schedules.command()
@name_argument
@click.option(
    "--from", "start", required=True, metavar="TIME", help="The first time, such as 2030-05-01 or 2030-05-01T09:00."
)
@click.option("--to", "end", required=True, metavar="TIME", help="The last time.")
@tenant_option
@json_option
def backfill(name: str, start: str, end: str, tenant: str, as_json: bool) -> int:
    """Run the past times of a schedule from one moment to another, one after the other."""
    with _open() as client:
        count = client.schedules.of(tenant).backfill(name, _time(start), _time(end))
    click.echo(json.dumps({"times": count}) if as_json else f"{count} times will run", err=not as_json)
    return 0


@schedules.command()
@name_argument
@tenant_option
@json_option
def delete(name: str, tenant: str, as_json: bool) -> int:
    """Delete a schedule; its open runs go on."""
    with _open() as client:
        client.schedules.of(tenant).delete(name)
    click.echo(json.dumps({"deleted": name}) if as_json else f"deleted schedule {name!r}", err=not as_json)
    return 0


@schedules.command("import")
@click.argument("application", metavar="MODULE:APP")
def import_(application: str) -> int:
    """Print the `beat_schedule` of a Celery application as tools and schedules for the configuration."""
    check_extras("celery", needed_by="submit schedules import")
    from cantata.client.application import beat_schedule

    found = beat_schedule.read(application)
    click.echo(
        yaml.safe_dump({"tools": found.tools, "schedules": found.schedules}, sort_keys=False, allow_unicode=True),
        nl=False,
    )
    for fault in found.faults:
        click.echo(f"submit: {fault.where}: {fault.message}", err=True)
    return FAILED if found.faults else 0


def _print_one(view: ScheduleView, as_json: bool) -> int:
    click.echo(view.model_dump_json() if as_json else "\n".join(_lines(view)))
    return 0


def _lines(view: ScheduleView) -> Sequence[str]:
    rows = [
        ("times", view.timing),
        ("runs", text_format.line(view.target, 100)),
        ("overlap", view.schedule.overlap if view.schedule else ""),
        ("note", view.schedule.note if view.schedule else ""),
        ("next", ", ".join(map(_moment, view.next_at)) or f"{view.state}{view.pause_note and f': {view.pause_note}'}"),
        ("so far", f"{view.fired} fired, {view.skipped} skipped, {view.missed} missed, {view.pending} waiting"),
        ("error", view.unreadable or view.error),
    ]
    lines = [view.name, *(f"  {label:8} {text_format.clean(text)}" for label, text in rows if text)]
    return [
        *lines,
        *(f"  {_moment(run.scheduled_at):16}  {run.run_id:19}  {run.status or 'expired'}" for run in view.runs),
    ]


def _moment(seconds: float) -> str:
    return text_format.moment(seconds, "%Y-%m-%d %H:%M:%S").removesuffix(":00")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"expected a date or time such as 2030-05-01 or 2030-05-01T09:00, not {text!r}"
        ) from None
