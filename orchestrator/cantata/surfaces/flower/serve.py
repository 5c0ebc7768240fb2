"""Flower with the run pages, served in this process until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import structlog
from celery import Celery
from celery._state import set_default_app
from celery.events import EventReceiver
from flower.app import Flower
from flower.events import Events
from flower.options import options
from flower.urls import settings as flower_settings
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop, PeriodicCallback
from tornado.routing import URLSpec

from cantata.client.addresses import Address, celery_url, parse, without_password
from cantata.client.client import Client
from cantata.client.failures import RedisFailure, warn
from cantata.errors import CantataError, UnavailableError
from cantata.operation import json_streams
from cantata.operation.embedded import stack_member
from cantata.settings import settings
from cantata.surfaces.flower import flower_options, page_handlers, run_handlers, schedule_handlers
from cantata.surfaces.flower.flower_templates import TemplateLoader
from cantata.surfaces.flower.page_service import PageService
from cantata.surfaces.flower.passwords import PasswordThrottle, ThrottledHandler

GRACE_S = 1.0  # for event streams to end at shutdown
POLL_MS = 1000  # between checks whether the stack still runs
RETRY_S = 2.0  # between two attempts to read task events
CHECK_S = 5.0  # between looks for workers whose task events are elsewhere

log = structlog.get_logger(__name__)


def serve(client: Client, *, ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `ready` is called with the address. Raises UnavailableError if it cannot listen there."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    set_default_app(
        client.app
    )  # Flower's templates ask Celery for "the" app and its time zone; no code of users runs here
    flower = _make_flower(client)
    service = loop.run_until_complete(_open(client))
    flower.add_handlers(".*", routes(flower_options.prefix(), service))
    address = _listen(flower)
    _stop_on_signals(loop, flower)
    loop.call_soon(ready, address)
    threading.Thread(target=_warn_of_other_events, args=(client,), daemon=True).start()
    try:
        flower.start()
    finally:
        loop.run_until_complete(_close(service))
    _end_at_once(flower.executor)


def _end_at_once(executor: ThreadPoolExecutor) -> None:
    """End this process although threads of Flower wait for a broker: without it, kombu tries for ever, and Python would wait for them."""
    give_up = time.monotonic() + GRACE_S
    executor.shutdown(wait=False, cancel_futures=True)
    while any(thread.is_alive() for thread in executor._threads):
        if time.monotonic() > give_up:
            json_streams.finish()
            sys.stdout.flush()
            os._exit(0)
        time.sleep(POLL_MS / 20_000)


def _warn_of_other_events(client: Client) -> None:
    """Warn once if workers publish their task events where this Flower does not read them: beside an application that it was not given."""
    own, warned = client.app.conf.event_exchange, False
    while not warned:
        with suppress(CantataError, RedisFailure):
            for worker in client.fleet.workers():
                if worker.event_exchange not in ("", own):
                    if worker.app:
                        remedy = f"start Flower with --app {worker.app}, or CANTATA_APP"
                    else:  # Flower was given the application
                        remedy = f"start that worker with --app {settings().app}, as the others, or Flower without it"
                    log.warning("other_events", worker=worker.name, hint=f"its tasks are not shown: {remedy}")
                    warned = True
                    break
        time.sleep(CHECK_S)


def routes(prefix: str, service: PageService) -> list[URLSpec]:
    """Return the paths of the run pages and of their API."""
    top, given = f"{prefix}/runs", {"service": service}
    run = f"{top}/api/runs/([^/]+)"
    return [
        URLSpec(f"{prefix}/metrics", page_handlers.MetricsHandler),
        URLSpec(top, page_handlers.RedirectHandler, given),
        URLSpec(f"{top}/", page_handlers.DocumentHandler, given, name="runs"),
        URLSpec(f"{top}/(?:home|run/[^/]+|inbox/?|schedules|schedule/[^/]+)", page_handlers.DocumentHandler, given),
        URLSpec(f"{top}/static/(.+)", page_handlers.AssetHandler, given),
        URLSpec(f"{top}/api/runs", run_handlers.RunListHandler, given),
        URLSpec(f"{top}/api/runs/counts", run_handlers.CountsHandler, given),
        URLSpec(f"{top}/api/costs", run_handlers.CostsHandler, given),
        URLSpec(f"{top}/api/inbox", run_handlers.InboxHandler, given),
        URLSpec(f"{top}/api/inbox/([^/]+)/(.+)", run_handlers.InboxItemHandler, given),
        URLSpec(f"{run}/graph", run_handlers.GraphHandler, given),
        URLSpec(f"{run}/steps/(.+)", run_handlers.StepHandler, given),
        URLSpec(f"{run}/events", run_handlers.EventsHandler, given),
        URLSpec(f"{run}/tasks", run_handlers.TaskListHandler, given),
        URLSpec(f"{run}/refusals", run_handlers.RefusalsHandler, given),
        URLSpec(f"{run}/cancel", run_handlers.CancelHandler, given),
        URLSpec(f"{run}/compare/([^/]+)", run_handlers.CompareHandler, given),
        URLSpec(f"{run}/retry", run_handlers.RetryHandler, given),
        URLSpec(f"{run}/fork", run_handlers.ForkHandler, given),
        URLSpec(f"{run}/signals/(.+)", run_handlers.SignalHandler, given),
        URLSpec(f"{top}/api/schedules", schedule_handlers.ScheduleListHandler, given),
        URLSpec(f"{top}/api/schedules/([^/]+)", schedule_handlers.ScheduleHandler, given),
        URLSpec(f"{top}/api/schedules/([^/]+)/(pause|resume|trigger)", schedule_handlers.ScheduleActionHandler, given),
        URLSpec(f"{top}/api/.*", page_handlers.UnknownPathHandler, given),
    ]


class _Events(Events):  # type: ignore[misc]  # Flower has no types
    """Task events, read again soon after an outage. Flower's own reader doubles its pause with every failure, to hours."""

    def run(self) -> None:
        """Read events as long as this process lives."""
        while True:
            try:
                with self.capp.connection() as connection:
                    receiver = EventReceiver(connection, handlers={"*": self.on_event}, app=self.capp)
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as error:  # noqa: BLE001  # the edge of a thread: whatever a broker raises, the next attempt may succeed
                warn(log, "events_not_read", error)
            time.sleep(RETRY_S)


class _Flower(Flower):  # type: ignore[misc]  # Flower has no types
    """Flower that throttles failed passwords before any of its handlers gets the request."""

    def __init__(self, capp: Celery, **more: Any) -> None:
        self._throttle = PasswordThrottle([*(options.basic_auth or ())])
        events = _Events(
            capp,
            db=options.db,
            persistent=options.persistent,
            state_save_interval=options.state_save_interval,
            enable_events=options.enable_events,
            io_loop=IOLoop.current(),
            max_workers_in_memory=options.max_workers,
            max_tasks_in_memory=options.max_tasks,
        )
        super().__init__(capp=capp, events=events, **more)

    def find_handler(self, request: HTTPServerRequest, **more: Any) -> Any:
        wait_s = self._throttle.wait_s(request.remote_ip or "", request.headers.get("Authorization", ""))
        if wait_s:
            return self.get_handler_delegate(request, ThrottledHandler, {"wait_s": wait_s})
        return super().find_handler(request, **more)


def _make_flower(client: Client) -> Any:
    templates = TemplateLoader(flower_settings["template_path"])
    flower = _Flower(capp=client.app, options=options, **{**flower_settings, "template_loader": templates})
    show_broker(flower, settings().broker_url or client.redis_url)
    return flower


def _listen(flower: Any) -> str:
    host, port = options.address, options.port
    try:
        if inherited := stack_member.inherited_socket():
            HTTPServer(flower, xheaders=options.xheaders).add_socket(inherited)
        else:
            port = flower.start_http_server()
    except OSError as error:
        listened = options.unix_socket or f"{host or 'every address'}, port {port}"
        raise UnavailableError(
            f"Flower cannot listen on {listened}: {error.strerror}; name another with --port"
        ) from error
    if port is None:
        return str(options.unix_socket)
    scheme = "https" if "ssl_options" in flower_settings else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host or '127.0.0.1'}:{port}{flower_options.prefix()}"


def _stop_on_signals(loop: asyncio.AbstractEventLoop, flower: Any) -> None:
    """Stop Flower on SIGINT and SIGTERM, immediately on the second one, and when its stack has ended."""

    def end() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        flower.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    PeriodicCallback(lambda: end() if stack_member.is_stack_gone() else None, POLL_MS).start()


async def _open(client: Client) -> PageService:
    return PageService(client)


async def _close(service: PageService) -> None:
    await service.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=GRACE_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def show_broker(flower: Any, url: str) -> None:
    """Set the Redis whose queues a Flower counts. It supports RabbitMQ by itself."""
    if flower.transport == "redis":
        flower.broker_uri_with_password = celery_url(url)
        flower.broker_uri = without_password(flower.broker_uri_with_password)
        _configure(flower.capp, parse(url))


def _configure(app: Celery, address: Address) -> None:
    """Set what Flower reads from Celery's settings; our transports need none of it."""
    if address.kind == "sentinel":
        app.conf.broker_transport_options |= {
            "master_name": address.master,
            "sentinel_kwargs": dict(address.sentinel_options),
        }
    if address.tls:
        app.conf.broker_use_ssl = {
            name: value for name, value in address.options.items() if name.startswith("ssl_")
        } or True
