"""`submit flower`: Flower with the run pages in it."""

from __future__ import annotations

import json
import os
import sys

import click

from cantata.client.serving import wait_for_client
from cantata.operation import json_streams
from cantata.operation.embedded import stack_member, stack_plan
from cantata.operation.logs import configure_logs
from cantata.surfaces.cli.options import json_option
from cantata.surfaces.flower import flower_options
from cantata.surfaces.flower.serve import serve


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--host",
    metavar="NAME",
    help="The address to listen at, 127.0.0.1 if absent; others only with passwords or a provider.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"The port, {stack_plan.FLOWER_PORT} if absent; 0 for any free one."
)
@click.option("--url-prefix", metavar="PATH", help="The prefix of every path, behind a proxy.")
@click.option("--basic-auth-file", metavar="FILE", help="Users, as lines name:password; default: FLOWER_BASIC_AUTH.")
@click.option("--read-only", is_flag=True, help="Permit no changes through Flower.")
@click.option(
    "--app", "user_app", metavar="MODULE:APP", help="The Celery application of your project, as for `submit worker`."
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[--OPTION=VALUE]...")
@json_option
def flower(
    host: str | None,
    port: int | None,
    url_prefix: str | None,
    basic_auth_file: str | None,
    read_only: bool,
    user_app: str | None,
    more: tuple[str, ...],
    as_json: bool,
) -> int:
    """Serve Flower, the task monitor, with the run pages in it. Ctrl-C stops it.

    Options of Flower may follow, such as --persistent=true; FLOWER_... variables and flowerconfig.py apply too.
    """
    configure_logs()
    if user_app:
        os.environ["CANTATA_APP"] = user_app
    options = {"address": host, "port": port, "url_prefix": url_prefix, "read_only": read_only or None}
    own = [
        f"--{name}={str(value).lower() if value is True else value}"
        for name, value in options.items()
        if value is not None
    ]
    flower_options.set_options([*more, *own], basic_auth_file=basic_auth_file)
    with wait_for_client(name="flower") as client:
        for warning in filter(None, (flower_options.version_warning(), *client.warnings)):
            json_streams.report("flower", f"warning: {warning}", {"warning": warning}, level="warning")

        def announce(url: str) -> None:
            addresses: dict[str, object] = {"url": url, "runs": f"{url}/runs/", "pid": os.getpid()}
            if as_json:
                click.echo(json.dumps(addresses))
            else:
                text = f"Flower listens at {url}, the runs are at {addresses['runs']}; Ctrl-C stops it"
                json_streams.report("flower_ready", text, addresses, to=sys.stdout)
            stack_member.announce_ready()

        serve(client, ready=announce)
    return 0
