"""`submit sessions`: conversations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from cantata.flows.wire import fault_of_session
from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.options import json_option
from cantata.text import text_format

if TYPE_CHECKING:
    from cantata.flows.wire import HistoryEntry, SessionInfo


@click.group()
def sessions() -> None:
    """List, show and clear conversations."""


def _parse_name(ctx: click.Context, option: click.Parameter, name: str) -> str:
    if fault := fault_of_session(name):
        raise click.BadParameter(fault)
    return name


name = click.argument("name", callback=_parse_name)
tenant = click.option(
    "--tenant", metavar="NAME", default="", help="Its tenant, as in the label `tenant` of its turns; none if absent."
)


@sessions.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many, the last used first."
)
@tenant
@json_option
def list_(limit: int, tenant: str, as_json: bool) -> int:
    """List conversations, the last used first."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        found = connection.client.of(tenant).sessions.list(limit)
    if as_json:
        click.echo(json.dumps([each.model_dump() for each in found], ensure_ascii=False))
    elif not found:
        click.echo("no conversations are kept here", err=True)
    for each in () if as_json else found:
        click.echo(_format_session(each))
    return 0


@sessions.command()
@name
@click.option(
    "--limit", type=click.IntRange(1), metavar="NUMBER", help="How many of the newest entries; all if absent."
)
@tenant
@json_option
def show(name: str, limit: int | None, tenant: str, as_json: bool) -> int:
    """Show the entries of a conversation, the oldest first. With --json: one entry a line."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        entries, waiting = connection.client.of(tenant).sessions.conversation(name, limit)
    for entry in entries:
        click.echo(entry.model_dump_json() if as_json else _format_entry(entry))
    for run_id in () if as_json else waiting:
        click.echo(f"under way: submit runs follow {run_id}", err=True)
    return 0


@sessions.command()
@name
@tenant
@json_option
def clear(name: str, tenant: str, as_json: bool) -> int:
    """Delete the entries of a conversation. Its turns are kept as runs."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        owner = connection.client.of(tenant)
        with owner.record("session.clear", name) as entry:
            count = owner.sessions.clear(name)
            entry.detail, entry.was_done = f"{count} entries", count > 0
    click.echo(
        json.dumps({"session": name, "cleared": count}) if as_json else f"deleted {count} entries", err=not as_json
    )
    return 0


def _format_session(each: SessionInfo) -> str:
    used = text_format.moment(each.last_used_at)
    under_way = f"  {each.waiting} under way" if each.waiting else ""
    what = text_format.clean(each.unreadable) or f"{each.entries:>5} entries{under_way}"
    return f"{text_format.line(each.session, 60):30}  {used}  {what}"


def _format_entry(entry: HistoryEntry) -> str:
    return f"{text_format.clock(int(entry.ts * 1000))} {text_format.speaker(entry.role, entry.agent)}: {text_format.clean(entry.content)}"
