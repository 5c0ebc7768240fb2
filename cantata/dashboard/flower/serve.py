"""Runs Flower with the run pages in this process, until it is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from flower.app import Flower
from flower.options import options
from flower.urls import settings as flower_settings
from tornado.httpserver import HTTPServer
from tornado.ioloop import PeriodicCallback
from tornado.routing import URLSpec

from cantata import embedded
from cantata.client.client import Client
from cantata.dashboard.flower import flower_options, page_handlers, run_handlers
from cantata.dashboard.flower.blocking_calls import Desk
from cantata.dashboard.flower.broker import show_broker
from cantata.dashboard.flower.flower_templates import Templates
from cantata.errors import UnavailableError
from cantata.settings import settings

GRACE_S = 1.0  # for those who follow runs to be let go of, when it is told to end
LOOK_MS = 1000  # between two looks whether the stack is still there


def serve(client: Client, *, ready: Callable[[str], None]) -> None:
    """Serve until told to end; `ready` is told the address. Raises UnavailableError if it cannot listen there."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    client.app.set_default()  # Flower's templates ask Celery for "the" app and its time zone
    flower = _make_flower(client)
    desk = loop.run_until_complete(_open(client))
    flower.add_handlers(".*", routes(flower_options.prefix(), desk))
    address = _listen(flower)
    _end_when_told(loop, flower)
    loop.call_soon(ready, address)
    try:
        flower.start()
    finally:
        loop.run_until_complete(_let_go(desk))


def routes(prefix: str, desk: Desk) -> list[URLSpec]:
    """The paths of the run pages and of their API."""
    top, given = f"{prefix}/runs", {"desk": desk}
    run = f"{top}/api/runs/([^/]+)"
    return [
        URLSpec(top, page_handlers.Moved, given),
        URLSpec(f"{top}/", page_handlers.Document, given, name="runs"),
        URLSpec(f"{top}/run/[^/]+", page_handlers.Document, given),
        URLSpec(f"{top}/static/(.+)", page_handlers.Asset, given),
        URLSpec(f"{top}/api/runs", run_handlers.List, given),
        URLSpec(f"{run}/graph", run_handlers.Graph, given),
        URLSpec(f"{run}/steps/(.+)", run_handlers.Step, given),
        URLSpec(f"{run}/events", run_handlers.Events, given),
        URLSpec(f"{run}/tasks", run_handlers.Tasks, given),
        URLSpec(f"{run}/refusals", run_handlers.Refusals, given),
        URLSpec(f"{run}/cancel", run_handlers.Cancel, given),
        URLSpec(f"{run}/retry", run_handlers.Retry, given),
        URLSpec(f"{run}/signals/(.+)", run_handlers.Signal, given),
        URLSpec(f"{top}/api/.*", page_handlers.Unknown, given),
    ]


def _make_flower(client: Client) -> Any:
    templates = Templates(flower_settings["template_path"])
    flower = Flower(capp=client.app, options=options, **{**flower_settings, "template_loader": templates})
    show_broker(flower, settings().broker_url or client.redis_url)
    return flower


def _listen(flower: Any) -> str:
    host, port = options.address, options.port
    try:
        if inherited := embedded.inherited_socket():
            HTTPServer(flower, xheaders=options.xheaders).add_socket(inherited)
        else:
            port = flower.start_http_server()
    except OSError as error:
        place = options.unix_socket or f"{host or 'every address'}, port {port}"
        raise UnavailableError(f"Flower cannot listen on {place}: {error.strerror}; name another with --port") from error
    if port is None:
        return str(options.unix_socket)
    scheme = "https" if "ssl_options" in flower_settings else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host or '127.0.0.1'}:{port}{flower_options.prefix()}"


def _end_when_told(loop: asyncio.AbstractEventLoop, flower: Any) -> None:
    """End on the usual signals, the second one at once, and when the stack that this is part of is gone."""

    def end() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        flower.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    PeriodicCallback(lambda: end() if embedded.is_stack_gone() else None, LOOK_MS).start()


async def _open(client: Client) -> Desk:
    return Desk(client)


async def _let_go(desk: Desk) -> None:
    await desk.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=GRACE_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
