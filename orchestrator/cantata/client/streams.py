"""EventStreams: what an event loop reads from Redis, on connections of its own: events of runs, states of batches, rates of requests."""

from __future__ import annotations

import asyncio

from cantata.client.client import Client
from cantata.engine.limits.request_rate import RequestRate
from cantata.features.batches.batch_streams import BatchStreams
from cantata.ledger.redis.keys import namespace_of
from cantata.ledger.runs.streams import Streams, connect_async

__all__ = ["EventStreams", "RequestRate", "Streams"]


class EventStreams:
    """Streams for any number of readers. Must be created and used in one event loop; `run` reads until `end`."""

    def __init__(self, client: Client) -> None:
        self._redis = connect_async(client.redis_url, namespace=namespace_of(client.redis))
        self.runs, self.batches = Streams(self._redis), BatchStreams(self._redis)

    def request_rate(self, *, per_s: float, burst: int) -> RequestRate:
        """Return the request rates of tenants, which all gateways share."""
        return RequestRate(self._redis, per_s=per_s, burst=burst)

    async def run(self) -> None:
        """Read until the streams end."""
        await asyncio.gather(self.runs.run(), self.batches.run())

    def end(self) -> None:
        """End all streams: their readers get StreamsEnded."""
        self.runs.end()
        self.batches.end()

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
