"""`submit inbox`: steps that wait for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import author_option, json_option, parse_assignments, parse_json, parse_pairs
from cantata.text import text_format
from cantata.values import as_text

if TYPE_CHECKING:
    from cantata.flows.waits import InboxItem
    from cantata.surfaces.cli.connection import ServiceConnection

MAX_ANSWERED = 100_000  # steps that one command answers
WIDTH = 80  # characters of a question in the list

filter_option = click.option(
    "--filter",
    "labels",
    multiple=True,
    callback=parse_pairs,
    metavar="LABEL=VALUE",
    help="Only steps of runs with this label.",
)
who_option = click.option(
    "--who", default="", metavar="NAME", help="Only steps that this name, group or scope may answer."
)
item_id = click.argument("item_id", metavar="ID")


@click.group()
def inbox() -> None:
    """List and answer the steps that wait for a person."""


@inbox.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="How many, the longest waiting first.",
)
@filter_option
@who_option
@json_option
def list_(limit: int, labels: dict[str, str], who: str, as_json: bool) -> int:
    """List the steps that wait for a person, the longest waiting first. With --json: one a line."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        found = connection.client.inbox(labels=labels, who=who, most=limit)
    if not found and not as_json:
        click.echo("no such step waits for a person" if labels or who else "no step waits for a person", err=True)
    for item in found:
        click.echo(item.model_dump_json() if as_json else _line(item))
    return 0


@inbox.command()
@item_id
@json_option
def show(item_id: str, as_json: bool) -> int:
    """Show what a step asks: the question, its context, and the form of the answer."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        item = connection.runs.inbox_item(item_id)
    click.echo(item.model_dump_json() if as_json else "\n".join(_details(item)))
    return 0


@inbox.command()
@click.argument("words", nargs=-1, metavar="[ID...] [JSON]")
@click.option(
    "--field", "fields", multiple=True, callback=parse_assignments, metavar="KEY=VALUE",
    help="A field of the answer, in place of JSON; VALUE is JSON, or a text.",
)  # fmt: skip
@click.option("--all", "is_all", is_flag=True, help="Answer all steps that --filter and --who leave.")
@filter_option
@who_option
@author_option
@click.option("--yes", is_flag=True, help="Do not ask before several steps are answered.")
@json_option
@click.pass_context
def answer(
    ctx: click.Context,
    words: tuple[str, ...],
    fields: dict[str, Any],
    is_all: bool,
    labels: dict[str, str],
    who: str,
    by: str,
    yes: bool,
    as_json: bool,
) -> int:
    """Answer steps that wait for a person, all with the same value: JSON, or the fields of an object.

    \b
    submit inbox answer RUN/approve true
    submit inbox answer RUN/approve --field approved=true --field note="Looks good"
    submit inbox answer --all --filter team=sales true
    """
    ids, texts = (words, ()) if fields else (words[:-1], words[-1:])
    if not (fields or texts):
        raise click.UsageError("name the answer: JSON, or --field KEY=VALUE")
    if bool(ids) == is_all or ((labels or who) and not is_all):
        raise click.UsageError("name the steps by their ids, or all with --all, which --filter and --who narrow")
    value = fields or parse_json(ctx, ctx.command.params[0], texts[0])
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        wanted = (
            [item.id for item in connection.client.inbox(labels=labels, who=who, most=MAX_ANSWERED)]
            if is_all
            else [*ids]
        )
        if len(wanted) > 1 and not yes:
            click.confirm(f"Answer {len(wanted)} steps?", abort=True, err=True)
        return _send(connection, wanted, value, by, as_json=as_json)


def _send(connection: ServiceConnection, ids: list[str], value: Any, by: str, *, as_json: bool) -> int:
    """Send the same answer to several steps, and print each outcome; return the exit status."""
    from cantata.client.records import outcomes
    from cantata.flows.waits import Answer

    found = outcomes(
        (Answer(id=each, value=value) for each in ids),
        lambda each: connection.client.answer(each.id, each.value, by=by),
    )
    for each in found:
        click.echo(
            each.model_dump_json() if as_json else f"{each.id}: {text_format.clean(each.message)}", err=not as_json
        )
    if not found:
        click.echo("no step waits for a person", err=True)
    return 0 if all(each.outcome in ("taken", "kept") for each in found) else FAILED


def _line(item: InboxItem) -> str:
    since = text_format.moment(item.since)
    who = f"  for {', '.join(item.who)}" if item.who else ""
    return f"{text_format.clean(item.id):40}  {since}  {text_format.line(item.question or item.title, WIDTH)}{text_format.clean(who)}"


def _details(item: InboxItem) -> list[str]:
    """Return the lines of an item: its question first."""
    rows: dict[str, Any] = {
        "context": item.context, "answer_schema": item.answer_schema, "who": item.who and ", ".join(item.who), "run": item.title,
        "labels": item.labels,
    }  # fmt: skip
    times = {"since": item.since, "ends": item.ends_at, "reminded": item.reminded_at, "escalated": item.escalated_at}
    rows |= {name: text_format.moment(at, "%Y-%m-%d %H:%M:%S") for name, at in times.items() if at}
    shown = [f"{name + ':':15}{text_format.clean(as_text(value))}" for name, value in rows.items() if value]
    return [
        text_format.clean(item.question or item.id),
        "",
        *shown,
        f"{'answer:':15}submit inbox answer {item.id} JSON",
    ]
