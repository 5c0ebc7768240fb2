"""`submit gateway`: turns, chains, sessions and memory over HTTP and WebSockets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from cantata.client.serving import wait_for_client
from cantata.errors import CantataError
from cantata.operation import json_streams
from cantata.operation.embedded import stack_member, stack_plan
from cantata.operation.logs import configure_logs
from cantata.operation.metrics.scrape_address import scrape_address
from cantata.settings import settings
from cantata.surfaces.cli.options import config_option, json_option, metrics_port_option
from cantata.surfaces.gateway import access, serve
from cantata.surfaces.gateway.app import PER_S, REQUEST_BYTES, create_app
from cantata.surfaces.gateway.open_requests import MAX_WAITING

TOKENS, TOKENS_FILE = "CANTATA_GATEWAY_TOKENS", "CANTATA_GATEWAY_TOKENS_FILE"
REQUEST_RATE = click.FloatRange(0.001, 1e6)


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="NAME",
    help="The address to listen at; others than this only with tokens.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=stack_plan.GATEWAY_PORT,
    show_default=True,
    help="The port to listen at; 0 for any free one.",
)
@click.option("--url-prefix", default="", metavar="PATH", help="The prefix of every path, behind a proxy.")
@click.option(
    "--tokens-file",
    metavar="FILE",
    help=f"JSON or YAML: token → tenant or rights; default: the file {TOKENS_FILE}, else the text {TOKENS}.",
)
@click.option("--rate", type=REQUEST_RATE, default=PER_S, show_default=True, help="Requests a second for each tenant.")
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=REQUEST_BYTES,
    show_default=True,
    help="The largest size of a request or message.",
)
@click.option(
    "--max-open", type=click.IntRange(1), default=MAX_WAITING, show_default=True,
    help="Streams, WebSockets and waiting requests that one tenant may have open.",
)  # fmt: skip
@metrics_port_option
@config_option
@json_option
def gateway(
    host: str,
    port: int,
    url_prefix: str,
    tokens_file: str | None,
    rate: float,
    max_bytes: int,
    max_open: int,
    metrics_port: int | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Serve turns, chains, sessions and memory over HTTP and WebSockets. Ctrl-C stops it."""
    configure_logs()
    tokens = _tokens(tokens_file)
    serve.check_address(host, has_tokens=tokens is not None, is_published_on_loopback=settings().published_on_loopback)
    with wait_for_client(config=config, name="gateway") as client:
        client.definitions  # noqa: B018  # so that a fault in it stops the start, not the first request
        client.app  # noqa: B018  # it tells what waits in the broker: one without a broker is refused
        for warning in client.warnings:
            json_streams.report("redis", f"warning: {warning}", {"warning": warning}, level="warning")
        most = min(max_open, serve.max_connections() // 2)  # one tenant must not take all
        with serve.bind(host, port) as listening:
            url = serve.url_of(listening)
            app = create_app(
                client,
                tokens=tokens,
                request_bytes=max_bytes,
                per_s=rate,
                max_open=most,
                flower=settings().flower_url or "",
                trace=settings().trace_url or "",
                url_prefix=url_prefix,
                access_log=settings().access_log,
            )
            metrics = scrape_address(metrics_port)
            addresses: dict[str, object] = {
                "url": url,
                "pid": os.getpid(),
                **({"metrics_url": app.state.fleet_monitor.serve(metrics).url} if metrics else {}),
            }

            def announce() -> None:
                if as_json:
                    click.echo(json.dumps(addresses))
                else:
                    text = f"the gateway listens at {url}; Ctrl-C stops it"
                    json_streams.report("gateway_ready", text, addresses, to=sys.stdout)
                stack_member.announce_ready()

            server = serve.GatewayServer(app, ready=announce, max_bytes=max_bytes)
            server.run(sockets=[listening])
    if not server.started:
        raise CantataError("the gateway did not start")
    return 0


def _tokens(file: str | None) -> access.Tokens | None:
    path = file or os.environ.get(TOKENS_FILE)
    if path:
        return access.read_tokens_file(Path(path))
    text = os.environ.get(TOKENS)
    return access.read_tokens(text, TOKENS) if text else None
