"""GatewayService: what all requests of a gateway share, and the client that each of them gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cantata.client.client import Client
from cantata.client.graphs.run_pages import RunPages
from cantata.client.runs import Run
from cantata.client.streams import EventStreams
from cantata.client.tenant_client import TenantClient
from cantata.flows.wire import RUN_OVER
from cantata.surfaces.gateway.granted_client import GrantedClient
from cantata.surfaces.gateway.grants import Grant
from cantata.surfaces.gateway.readiness import Readiness
from cantata.surfaces.http.blocking_calls import BlockingCalls

Done = TypeVar("Done")

THREADS = 32  # calls of Redis at once; each takes about a millisecond, so that is thousands a second
MAX_WAITING = 2000  # calls that wait for a thread, before more are rejected: Redis is away, or far too slow
MAX_OF_TENANT = 500  # of one tenant among them: two and a half seconds' worth of its usual request rate


class GatewayService:
    """The client of a gateway, its event streams, and the threads in which routes call them."""

    def __init__(self, client: Client, streams: EventStreams, *, prefix: str = "") -> None:
        self.client, self.streams = client, streams  # the client changes with the configuration's files
        self.prefix = prefix  # of the URLs in responses
        self.pages = RunPages(client.engine)
        self.call = BlockingCalls("the gateway", threads=THREADS, max_waiting=MAX_WAITING, max_of_one=MAX_OF_TENANT)
        self.readiness = Readiness(client, self.call)

    def of(self, tenant: str | None) -> TenantClient:
        """Return the runs, sessions and memory of a tenant, for what its scope alone allows; with None, the runs of all tenants."""
        return self.client.of(tenant)

    def granted(self, grant: Grant) -> GrantedClient:
        """Return a client that checks the rights of a token."""
        return GrantedClient(self.client, grant)

    async def recorded(self, tenant: str, action: str, target: str, act: Callable[[], Done]) -> Done:
        """Do something that changes what a tenant keeps, and record it in the audit log, unless its result is 0 or False."""

        def do() -> Done:
            with self.of(tenant).record(action, target) as entry:
                done = act()
                entry.was_done = done not in (0, False)
            return done

        return await self.call(do)

    async def is_over(self, run: Run, wait_s: float) -> bool:
        """Return whether a run is closed, as soon as it is, or after `wait_s`. Waiting needs no thread."""
        return await self.call.when_free(run.status) in RUN_OVER or (
            bool(wait_s) and await self.streams.runs.wait_closed(run.run_id, wait_s)
        )
