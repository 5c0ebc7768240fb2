"""`submit audit`: the audit log, on a terminal or as JSON lines."""

from __future__ import annotations

import click

from cantata.surfaces.cli.commands.runs import parse_age
from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.options import json_option
from cantata.text import text_format


@click.command()
@click.option("--since", callback=parse_age, metavar="AGE", help="Only entries since then: 90s, 30m, 1h, 7d.")
@click.option("--by", default="", metavar="NAME", help="Only those of this token, or USER@HOST.")
@click.option(
    "--action", default="", metavar="ACTION", help="Only this action, such as run.cancel, or all of a kind: run."
)
@click.option("--run", "run_id", default="", metavar="ID", help="Only those about this run.")
@click.option("--tenant", metavar="NAME", help='Only those about this tenant; "" for those about none and the fleet.')
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="How many, the newest first."
)
@json_option
def audit(since: float | None, by: str, action: str, run_id: str, tenant: str | None, limit: int, as_json: bool) -> int:
    """Show who cancelled, retried, signalled, answered, paused or changed something.

    The newest entry comes first. With --json: one entry a line.

    Names are those of the gateway's tokens. Any other name is a claim, which nothing proves, and is marked so.
    """
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        found = connection.client.audit(tenant=tenant, since=since, by=by, action=action, run_id=run_id, most=limit)
    if as_json:
        for entry in found:
            click.echo(entry.model_dump_json())
        return 0
    if not found:
        click.echo(
            "no entry matches" if since or by or action or run_id or tenant else "nobody has acted so far", err=True
        )
        return 0
    rows: list[tuple[str, ...]] = [("time", "action", "outcome", "on", "by", "via", "tenant", "detail")]
    for entry in found:
        on = " ".join(filter(None, [entry.run_id, entry.target]))
        via = f"{entry.via} {entry.address}".strip()
        cells = (entry.action, entry.outcome, on, entry.author, via, entry.tenant, entry.unreadable or entry.detail)
        shown = (text_format.line(cell, 60) for cell in cells)
        rows.append((text_format.moment(entry.at, "%Y-%m-%d %H:%M:%S"), *shown))
    click.echo("\n".join(text_format.columns(rows)))
    return 0
