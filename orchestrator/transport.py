"""kombu's Redis transport, with one client for each connection pool.

kombu 5.7 makes a new client object for every receipt and acknowledgement; that was 15 % of a busy coordinator's processor time (py-spy).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """A channel that keeps its client."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        return super()._create_client(asynchronous=True) if asynchronous else self._pooled_client  # type: ignore[misc]  # not in the stubs

    @cached_property
    def _pooled_client(self) -> Any:
        return super()._create_client()  # type: ignore[misc]  # not in the stubs


class Transport(redis.Transport):
    """The transport that Cantata's own processes speak to a Redis broker with; what is on the wire is kombu's."""

    Channel = Channel


class SocketTransport(Transport):
    """The same over a Unix socket, whose URL the channel reads itself."""

    can_parse_url = True
