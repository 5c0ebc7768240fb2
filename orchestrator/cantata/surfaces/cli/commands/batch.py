"""`submit batch`: the rows of a file, each as a run."""

from __future__ import annotations

import json
from typing import Any

import click

from cantata.surfaces.cli.connect import connect_or_start, connect_to_kept
from cantata.surfaces.cli.options import (
    add_commands,
    config_option,
    json_option,
    label_option,
    name_argument,
    parse_pairs,
    tenant_option,
)

RUN = "run"


class BatchGroup(click.Group):
    """A first word that is no command is the file of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


@click.group(cls=BatchGroup)
def batch() -> None:
    """Send each row of a file to an agent, team, chain or workflow, and collect the results.

    `submit batch FILE ...` is short for `submit batch run FILE ...`; a file named like a command is written ./list.
    """


@batch.command(RUN)
@click.argument("file")
@click.option("--agent", metavar="NAME", help="The agent to answer each row.")
@click.option("--team", metavar="NAME", help="The team to answer each row.")
@click.option("--chain", metavar="NAME", help="The chain to run for each row: a file, or a name under `chains:`.")
@click.option(
    "--workflow", metavar="NAME", help="The workflow in Python to run for each row: a name under `workflows:`."
)
@click.option(
    "--out",
    default="-",
    metavar="FILE",
    help="The file for the results: .jsonl, .csv or .parquet; standard output if absent.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The batch's name; by default that of FILE. The same name goes on with the same batch.",
)
@click.option(
    "--mode", type=click.Choice(["live", "provider"]), default="live", show_default=True,
    help="provider: a batch of the model's provider answers, within a day, mostly at half the price; for agents of one model call.",
)  # fmt: skip
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="How many rows are open at most: 100; in mode provider 50,000.",
)
@click.option(
    "--budget-usd",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Stop before it costs more than so many dollars.",
)
@click.option(
    "--sample", type=click.IntRange(1), metavar="K", help="Run K rows first, show what the rest will cost, and ask."
)
@click.option("--yes", "assume_yes", is_flag=True, help="Do not ask after a sample.")
@click.option(
    "--map", "columns", multiple=True, callback=parse_pairs, metavar="COLUMN=FIELD", help="A column, and the field of the input that it is."
)  # fmt: skip
@click.option("--ordered", is_flag=True, help="Write the results in the order of the rows.")
@click.option(
    "--webhook", "webhooks", multiple=True, metavar="NAME|URL", help="Post the end of the batch to this webhook."
)
@config_option
@label_option
@json_option
def run(file: str, config: str | None, as_json: bool, **options: Any) -> int:
    """Run the rows of FILE: JSONL, CSV, TSV or Parquet, or - for JSONL from standard input. The same command goes on where it stopped."""
    with connect_or_start(config=config, as_json=as_json) as connection:
        from cantata.client.records import batch_target
        from cantata.surfaces.cli.batch_submission import submit_file

        target = batch_target(**{kind: options.pop(kind) for kind in ("agent", "team", "chain", "workflow")})
        return submit_file(connection, file, target, as_json=as_json, **options)


@batch.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many, the newest first."
)
@tenant_option
@json_option
def list_(limit: int, tenant: str, as_json: bool) -> int:
    """List batches, the newest first."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli.batch_submission import describe

        found = connection.client.batches.of(tenant).newest(limit)
    if as_json:
        click.echo(json.dumps([each.model_dump() for each in found], ensure_ascii=False))
    elif not found:
        click.echo("no batches are kept here", err=True)
    for each in () if as_json else found:
        click.echo(describe(each))
    return 0


def _act(method: str, name: str, tenant: str, as_json: bool) -> int:
    """Call a method of the batches, and print the batch as it is after that."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        from cantata.surfaces.cli.batch_submission import describe

        found = getattr(connection.client.batches.of(tenant), method)(name)
    click.echo(found.model_dump_json() if as_json else describe(found))
    return 0


add_commands(
    batch,
    _act,
    {
        "show": ("find", "Show a batch as it is now."),
        "pause": ("pause", "Submit no more rows of a batch; open rows go on."),
        "resume": ("resume", "Go on with a paused batch, if its command still runs; else run that again."),
        "cancel": ("cancel", "End a batch for good, and cancel its open rows."),
    },
)


@batch.command()
@name_argument
@config_option
@label_option
@json_option
def retry(name: str, config: str | None, labels: dict[str, str], as_json: bool) -> int:
    """Run the failed rows of a batch that is done again, and put their results in place of the failures."""
    with connect_or_start(config=config, as_json=as_json) as connection:
        from cantata.surfaces.cli.batch_submission import retry_file

        return retry_file(
            connection, connection.client.batches.of(labels.get("tenant", "")), name, labels, as_json=as_json
        )


@batch.command()
@name_argument
@click.option("--failed", is_flag=True, help="The rows that failed, with their errors, though these were delivered.")
@tenant_option
def results(name: str, failed: bool, tenant: str) -> int:
    """Print results that are over and were not delivered to anyone, one row a line as JSON."""
    with connect_to_kept(workers=False) as connection:
        batches = connection.client.batches.of(tenant)
        start: int | None = 0
        while start is not None:
            page = batches.failed(name, start) if failed else batches.results(name, start)
            click.echo("".join(f"{row.model_dump_json()}\n" for row in page.rows), nl=False)
            start = page.next
    return 0
