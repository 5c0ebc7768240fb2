"""Warnings about a Redis that cannot be used: at once, then every few seconds, however often a call fails meanwhile."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import RedisError

from cantata.ledger.redis.redis_errors import reason

EVERY_S = 5.0
MAX_REMEMBERED = 100

_warned_at: dict[tuple[str, str], float] = {}


def warn(log: Any, event: str, failure: BaseException, **fields: object) -> None:
    """Log a warning, unless this process logged the same one less than EVERY_S ago."""
    error = reason(failure) if isinstance(failure, RedisError) else str(failure)
    now = time.monotonic()
    if now - _warned_at.get((event, error), -EVERY_S) < EVERY_S:
        return
    if len(_warned_at) >= MAX_REMEMBERED:
        _warned_at.clear()
    _warned_at[event, error] = now
    log.warning(event, error=error, **fields)
