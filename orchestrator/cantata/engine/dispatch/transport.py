"""kombu's Redis transport, with one client and one connection for everything that a channel sends; producers for the user's messages.

kombu 5.7 makes a new client object for every command and takes a connection from a pool for it: two thirds of the time of an LPUSH.
"""

from __future__ import annotations

import base64
import threading
from functools import cached_property
from queue import Empty
from typing import Any

import structlog
from celery import Celery
from kombu import Producer
from kombu.transport import redis, virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from cantata.ledger.redis.address import Address
from cantata.ledger.redis.broker_connection import reconnecting
from cantata.ledger.redis.connection import master_connection, sentinel_pool

FIRST = "first"  # header of a message that is put at the head of its queue, among those of its priority

DECODING_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Raised when an item of a queue is not a message: kombu makes objects of whatever is there."""

log = structlog.get_logger(__name__)


class UnackedMessages(virtual.QoS):
    """Received messages that are not acknowledged. The sweep sends again those that cannot be put back."""

    def restore_unacked(self) -> list[Any]:  # type: ignore[override]  # the stubs have no errors there
        """Put them back. kombu would write those that cannot be put back to a file that nobody reads."""
        super().restore_unacked()
        return []

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back, if it came on the current connection. One that cannot be put back waits until the channel closes."""
        if delivery_tag in (self._delivered or ()):
            try:
                super().reject(delivery_tag, requeue)
            except self.channel.connection_errors as error:  # type: ignore[attr-defined]  # Celery would log it with its traceback
                log.warning(
                    "message_not_returned", delivery_tag=delivery_tag, error=str(error), note="its step is sent again"
                )


def envelope(item: bytes, queue: str, channel: Any) -> Any:
    """Return the message in an item of a queue; an item that is not one is wrapped in a message whose content type nobody accepts."""
    try:
        found = loads(bytes_to_str(item))
        if _has_required_fields(channel.Message(found, channel=channel)):
            if found.get("redelivered"):  # kombu writes it here, and Celery looks for it there
                found["properties"]["delivery_info"]["redelivered"] = True
            return found
    except DECODING_ERRORS:  # not raised: with kombu it ends the worker
        pass
    log.warning("message_undecodable", queue=queue, bytes=len(item))
    properties = {
        "body_encoding": "base64",
        "delivery_tag": uuid(),
        "delivery_info": {"exchange": "", "routing_key": queue},
    }
    body = base64.b64encode(item).decode()
    return {
        "body": body,
        "content-type": "application/x-unknown",
        "content-encoding": "binary",
        "headers": {},
        "properties": properties,
    }


def _has_required_fields(message: Any) -> bool:
    """Return whether a message has the fields that kombu and Celery read before they look up its task."""
    headers = message.headers
    names = [
        message.delivery_tag,
        message.delivery_info["routing_key"],
        message.content_type,
        *([headers["task"], headers["id"]] if "task" in headers else []),
    ]
    return all(isinstance(name, str) and name for name in names)


class KeptClientChannel(redis.Channel):
    """kombu's channel, which keeps its client, and that client its connection."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        return super()._create_client(asynchronous=True) if asynchronous else self._kept_client  # type: ignore[misc]  # not in the stubs

    @cached_property
    def _kept_client(self) -> Any:
        return self.Client(connection_pool=self.pool, single_connection_client=True)

    def _disconnect_pools(self) -> None:
        self.__dict__.pop("_kept_client", None)  # a forked child must not speak on its parent's connection
        super()._disconnect_pools()  # type: ignore[misc]  # not in the stubs


class Channel(KeptClientChannel):
    """The same for Cantata's own messages; its keys begin with a namespace."""

    from_transport_options = (
        *redis.Channel.from_transport_options, "keyprefix_queue", "keyprefix_binding_permanent", "keyprefix_binding_deadlines"
    )  # fmt: skip

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.QoS = UnackedMessages  # type: ignore[assignment]  # as above

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc]  # not in the stubs
        return {**params, "connection_class": reconnecting(params["connection_class"])}

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        channel: Any = super()  # half of what it has is not in the stubs
        if not message["headers"].get(FIRST):
            channel._put(queue, message, **options)
            return
        key = channel._q_for_pri(queue, channel._get_message_priority(message, reverse=False))
        if (batch := options.get("_publish_batch")) is not None:
            batch.add("rpush", key, dumps(message))
        else:
            self._kept_client.rpush(key, dumps(message))

    def _brpop_read(self, **options: Any) -> bool:
        """Read as kombu does, but deliver an item that is not a message as one that cannot be decoded; with kombu it ends the worker."""
        try:
            try:
                found = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:  # type: ignore[attr-defined]  # not in the stubs
                self.client.connection.disconnect()
                raise
            if not found:
                raise Empty
            queue = bytes_to_str(found[0]).rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)  # type: ignore[attr-defined]  # as above
            self.connection._deliver(envelope(found[1], queue, self), queue)
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()  # type: ignore[attr-defined]  # as above


class Transport(redis.Transport):
    """The transport of Cantata's own processes to a Redis broker; the wire format is kombu's."""

    Channel = Channel

    def _reject_inbound_message(self, raw_message: dict[str, Any]) -> None:
        """Put a message back at the head of its queue: it came after its consumer was cancelled."""
        raw_message["headers"][FIRST] = True
        super()._reject_inbound_message(raw_message)


class SocketTransport(Transport):
    """The same over a Unix socket, whose URL the channel parses itself."""

    can_parse_url = True


class SentinelChannel(Channel):
    """A channel to the master that Sentinels report. With kombu's own, the next Sentinel of the URL would get kombu's transport."""

    from_transport_options = (*Channel.from_transport_options, "address")
    address: Address

    @property
    def connection_class(self) -> Any:  # type: ignore[override]  # kombu's is the same for all channels
        """The class of its connections, with TLS or without."""
        return master_connection(self.address)

    def _get_pool(self, asynchronous: bool = False) -> Any:
        options = {**self._connparams(asynchronous=asynchronous), **self.address.options}
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=options["db"])
        pool = sentinel_pool(
            self.address, {name: value for name, value in options.items() if name not in ("host", "port")}
        )
        if asynchronous:
            self._async_sentinel_manager = pool.sentinel_manager  # closed by kombu with the pool
        else:
            self._sentinel_manager = pool.sentinel_manager
        return pool


class SentinelTransport(Transport):
    """The same to the master that Sentinels report."""

    Channel = SentinelChannel
    default_port = 26379


class KeptClientTransport(redis.Transport):
    """kombu's transport, with channels that keep their client."""

    Channel = KeptClientChannel


class Producers:
    """A producer a thread for the broker of the user's application, if that is a Redis."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._thread = threading.local()

    def get(self) -> Producer | None:
        """Return this thread's producer, which sends what the application itself would send, in less time.

        Return None for another broker: then the application takes a producer of its own.
        """
        producer: Producer | None = getattr(self._thread, "producer", None)
        if producer is None:
            connection = self._app.connection_for_write()
            if connection.get_transport_cls() is redis.Transport:
                connection.transport_cls = KeptClientTransport  # type: ignore[assignment]  # the stubs know its name only
                producer = self._thread.producer = self._app.amqp.Producer(connection, auto_declare=False)
        return producer
