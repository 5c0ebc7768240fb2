"""kombu's Redis transport, with one client and one connection for all that a channel sends.

kombu 5.7 makes a new client object for every command and takes a connection from a pool for it: two thirds of the time of an LPUSH.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """A channel that keeps its client, and that client its connection."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        return super()._create_client(asynchronous=True) if asynchronous else self._kept_client  # type: ignore[misc]  # not in the stubs

    @cached_property
    def _kept_client(self) -> Any:
        return self.Client(connection_pool=self.pool, single_connection_client=True)

    def _disconnect_pools(self) -> None:
        self.__dict__.pop("_kept_client", None)  # a forked child must not speak on its parent's connection
        super()._disconnect_pools()  # type: ignore[misc]  # not in the stubs


class Transport(redis.Transport):
    """The transport that Cantata's own processes speak to a Redis broker with; what is on the wire is kombu's."""

    Channel = Channel


class SocketTransport(Transport):
    """The same over a Unix socket, whose URL the channel reads itself."""

    can_parse_url = True
