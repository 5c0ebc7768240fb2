"""`submit flower`: Flower, with the run pages in it."""

from __future__ import annotations

import json
import os

import click

from cantata import embedded
from cantata.cli.options import as_json
from cantata.client.client import Client
from cantata.dashboard.flower import flower_options
from cantata.dashboard.flower.serve import serve
from cantata.observability.logs import configure_logs


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--host", metavar="NAME", help="Where to listen, 127.0.0.1 if absent; elsewhere only with passwords or a provider.")
@click.option("--port", type=click.IntRange(0, 65535), help=f"{embedded.FLOWER_PORT} if absent; 0 for any that is free.")
@click.option("--url-prefix", metavar="PATH", help="What stands before every path, behind a proxy.")
@click.option("--basic-auth-file", metavar="FILE", help="Lines name:password: who may come; else FLOWER_BASIC_AUTH.")
@click.option("--read-only", is_flag=True, help="Let nothing be changed from here.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[--OPTION=VALUE]...")
@as_json
def flower(
    host: str | None, port: int | None, url_prefix: str | None, basic_auth_file: str | None, read_only: bool, more: tuple[str, ...],
    as_json: bool,
) -> int:  # fmt: skip
    """Serve Flower, which shows the tasks, with the run pages in it. Ctrl-C stops it.

    Any option of Flower may follow, such as --persistent=true; FLOWER_... variables and flowerconfig.py count too.
    """
    configure_logs()
    given = {"address": host, "port": port, "url_prefix": url_prefix, "read_only": read_only or None}
    own = [f"--{name}={str(value).lower() if value is True else value}" for name, value in given.items() if value is not None]
    flower_options.settle([*more, *own], basic_auth_file=basic_auth_file)
    with Client() as client:
        for warning in filter(None, (flower_options.version_warning(), *client.warnings)):
            click.echo(f"warning: {warning}", err=True)

        def ready(url: str) -> None:
            told = {"url": url, "runs": f"{url}/runs/", "pid": os.getpid()}
            click.echo(json.dumps(told) if as_json else f"Flower listens at {url}, the runs are at {told['runs']}; Ctrl-C stops it")
            embedded.announce_ready()

        serve(client, ready=ready)
    return 0
