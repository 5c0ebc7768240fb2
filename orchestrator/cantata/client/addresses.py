"""Addresses of Redis, for commands: as Celery takes them, and as they may be shown."""

from cantata.ledger.redis.address import Address, celery_url, parse, without_password
from cantata.operation.extras import NO_BROKER

__all__ = ["NO_BROKER", "Address", "celery_url", "parse", "without_password"]
