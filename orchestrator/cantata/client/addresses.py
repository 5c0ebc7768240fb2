"""Addresses of Redis, for commands: as Celery takes them, and as they may be shown."""

from cantata.ledger.redis.address import Address, celery_url, parse, without_password

__all__ = ["Address", "celery_url", "parse", "without_password"]
