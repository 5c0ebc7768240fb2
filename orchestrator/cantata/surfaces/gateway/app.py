"""Assembly of the gateway: layers, routes, and the tasks that read events and batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from cantata import __version__
from cantata.client.client import Client
from cantata.client.streams import EventStreams
from cantata.surfaces.gateway import http_errors, metrics
from cantata.surfaces.gateway.access import Access, Tokens, reread_on_change
from cantata.surfaces.gateway.access_log import AccessLog
from cantata.surfaces.gateway.api import (
    audit,
    batches,
    bodies,
    bulk,
    chat_socket,
    fleet,
    inbox,
    pages,
    routes,
    schedules,
)
from cantata.surfaces.gateway.config_reload import reload_on_change
from cantata.surfaces.gateway.fleet_health import FleetHealth
from cantata.surfaces.gateway.open_requests import MAX_WAITING, OpenRequestLimit, OpenRequests
from cantata.surfaces.gateway.outer_layer import OuterLayer, prefix_of
from cantata.surfaces.gateway.request_limits import BodyLimit, RequestRateLimit
from cantata.surfaces.gateway.service import GatewayService

REQUEST_BYTES = 16_000_000  # as large as a request to a worker may be by default (limits.input_bytes)
PER_S = 200.0  # requests a second for each tenant: far more than people type, far less than would starve other tenants
BURST_S = 10.0  # so many seconds of that rate may come at once

ROUTERS = (
    routes.probes,
    metrics.router,
    fleet.router,
    inbox.router,
    bulk.router,
    pages.router,
    pages.static,
    routes.router,
    batches.router,
    schedules.router,
    audit.router,
    chat_socket.router,
)

ABOUT = "Turns, chains, schedules, sessions and memory. A run does not depend on a connection; its events can be read from any offset."


def create_app(
    client: Client,
    *,
    tokens: Tokens | None = None,
    request_bytes: int = REQUEST_BYTES,
    per_s: float = PER_S,
    burst: int | None = None,
    max_open: int = MAX_WAITING,
    flower: str = "",
    trace: str = "",
    url_prefix: str = "",
    access_log: bool = False,
) -> FastAPI:
    """Return the gateway as an ASGI application. Without tokens every client is an operator.

    Args:
        max_open: streams, WebSockets and waiting requests that one tenant may have open at once.
        flower: the address of Flower, for links of the run pages.
        trace: the address of a trace, with `{trace_id}`, for links of the run pages.
        url_prefix: the prefix that a proxy adds to every path.
        access_log: whether each request is logged.

    Raises ConfigError for an invalid prefix.
    """
    prefix = prefix_of(url_prefix, own_names=_first_names())
    streams = EventStreams(client)
    service = GatewayService(client, streams, prefix=prefix)
    request_rate = streams.request_rate(per_s=per_s, burst=max(1, int(per_s * BURST_S)) if burst is None else burst)

    app = FastAPI(
        title="Cantata",
        version=__version__,
        description=ABOUT,
        lifespan=lambda _: _running(service, tokens),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": prefix}] if prefix else None,
    )  # FastAPI's own pages would load scripts from other hosts
    app.state.service, app.state.request_rate, app.state.flower, app.state.trace = service, request_rate, flower, trace
    app.state.fleet_monitor = metrics.FleetMonitor(client)
    app.state.fleet_health = FleetHealth(client, app.state.fleet_monitor, flower=flower)
    for router in ROUTERS:
        app.include_router(router)
    http_errors.install(app)
    app.add_middleware(BodyLimit, max_bytes=request_bytes)
    app.add_middleware(RequestRateLimit, request_rate=request_rate)
    app.add_middleware(OpenRequestLimit, open_requests=OpenRequests(max_waiting=max_open))
    app.add_middleware(Access, tokens=tokens)
    app.add_middleware(OuterLayer, prefix=prefix)  # the outermost, but for the log
    if access_log:
        app.add_middleware(AccessLog)
    _describe(app, has_tokens=tokens is not None)
    return app


@asynccontextmanager
async def _running(service: GatewayService, tokens: Tokens | None) -> AsyncIterator[None]:
    """Read events, and what changes of the configuration and the tokens, as long as the block lasts."""
    streams = service.streams
    reading = asyncio.create_task(streams.run())
    reloading = [asyncio.create_task(reload_on_change(service))]
    if tokens is not None:
        reloading.append(asyncio.create_task(reread_on_change(tokens)))
    try:
        yield
    finally:
        for task in reloading:
            task.cancel()
        streams.end()
        with suppress(asyncio.CancelledError):
            await reading
        service.call.close()
        await streams.close()


def _first_names() -> set[str]:
    """Return the first parts of our paths."""
    return {
        "openapi.json",
        *(path.split("/")[1] for router in ROUTERS for route in router.routes if (path := getattr(route, "path", ""))),
    }


def _describe(app: FastAPI, *, has_tokens: bool) -> None:
    """Add to the OpenAPI document what FastAPI cannot know: bodies that we parse ourselves, and tokens."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            components = document.setdefault("components", {})
            models: tuple[type[BaseModel], ...] = (
                *bodies.REQUEST_BODIES,
                *bulk.REQUEST_BODIES,
                *fleet.REQUEST_BODIES,
                *schedules.REQUEST_BODIES,
            )
            for model in models:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                components["schemas"] |= {**schema.pop("$defs", {}), model.__name__: schema}
            if has_tokens:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document
