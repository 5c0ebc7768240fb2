"""Addresses of Redis, for commands: as Celery takes them, and as they may be shown."""

from cantata.engine.publisher import NO_BROKER
from cantata.ledger.redis.address import Address, celery_url, parse, without_password

__all__ = ["NO_BROKER", "Address", "celery_url", "parse", "without_password"]
