"""Failures of a service, for surfaces that answer while it is away: `UnavailableError` comes from the client, these from streams too."""

from cantata.ledger.redis.connection import RedisFailure, RedisRefusal, reason
from cantata.ledger.redis.outages import warn
from cantata.ledger.redis.redis_errors import is_outage
from cantata.ledger.runs.streams import StreamsEnded

__all__ = ["RedisFailure", "RedisRefusal", "StreamsEnded", "is_outage", "reason", "warn"]
