"""`submit parked`: what the sweep could not handle, and an operator's decision about it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from cantata.client.records import Action, ParkedItem
from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.options import author_option, json_option
from cantata.text import text_format


@click.group()
def parked() -> None:
    """List what the sweep cannot handle and has parked, and have it tried again or drop it.

    A timer, a lost step, a schedule or the like whose record cannot be handled three times is parked: the sweep leaves it alone, so that
    it holds up nothing else. The rest of its run goes on, up to its deadline; `submit runs cancel` ends it.
    """


@parked.command("list")
@json_option
def list_(as_json: bool) -> int:
    """List parked items, those that failed first at the beginning."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        found = connection.client.fleet.parked.find()
    if as_json:
        click.echo(json.dumps([item.model_dump() for item in found]))
        return 0
    if not found:
        click.echo("nothing is parked", err=True)
        return 0
    rows = [("id", "since", "item", "error")]
    rows += [
        (item.id, text_format.moment(item.since), text_format.line(item.item, 60), text_format.line(item.error, 100))
        for item in found
    ]
    click.echo("\n".join(text_format.columns(rows)))
    for effect in dict.fromkeys(f"{item.duty}: {item.effect}" for item in found):
        click.echo(effect)
    click.echo("correct the cause, then `submit parked retry ID`; or give it up with `submit parked drop ID`")
    return 0


@parked.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@author_option
@json_option
def retry(ids: Sequence[str], by: str, as_json: bool) -> int:
    """Have parked items tried again. ID is that of `submit parked list`."""
    return _act(ids, "retry", by, "is tried again", as_json)


@parked.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@author_option
@json_option
def drop(ids: Sequence[str], by: str, as_json: bool) -> int:
    """Drop parked items: what they stand for never happens. A dropped schedule is paused."""
    return _act(ids, "drop", by, "is dropped", as_json)


def _act(ids: Sequence[str], action: Action, by: str, done: str, as_json: bool) -> int:
    changed: list[ParkedItem] = []
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        for each in ids:
            changed.append(connection.client.fleet.act_on_parked(each, action, by=by))
            if not as_json:
                click.echo(f"{each} {done}: {changed[-1].duty} {text_format.line(changed[-1].item)}")
    if as_json:
        click.echo(json.dumps([item.model_dump() for item in changed]))
    return 0
