"""Server-sent events of a run over the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cantata.client.runs import Run
from cantata.dashboard.http import server_sent_events
from cantata.gateway.http_errors import rejection
from cantata.gateway.tenant_service import TenantService
from cantata.state.runs import event_log

HEADERS = server_sent_events.HEADERS


def lines(service: TenantService, run: Run, after: int) -> AsyncIterator[str]:
    """Yield the text of the stream: events after an offset, comments while there are none, until `closed`."""
    return server_sent_events.lines(service.streams, run.run_id, after, body_of=lambda error: rejection(error).body.model_dump_json())


async def has_more(service: TenantService, run: Run, after: int) -> bool:
    """Return whether there are events after an offset now."""
    return bool(await service.call(event_log.read, service.client.redis, run.run_id, after=after, most=1))
