"""Outages of Redis as one process sees them: said at once and then once a minute, with one line when Redis is back.

One caller of a process looks regularly whether Redis answers, and reports it with `failed` and `answered`. What other calls meet
meanwhile goes through `warn`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import structlog
from redis.exceptions import RedisError

from cantata.errors import UnavailableError
from cantata.ledger.redis.redis_errors import is_refusal, reason

EVERY_S = 60.0
MAX_REMEMBERED = 100
LATE_S = 35.0
"""After Redis is back, a call that began before may still fail: it waits for a reply for 30 s, and belongs to the outage that is over."""

STEADY_S = 10.0
"""A Redis that is nearly full takes writes again and again: it is back when it has refused none for so long."""

log = structlog.get_logger(__name__)

_warned_at: dict[tuple[str, str], float] = {}


@dataclass
class _Outage:
    """The state of this process: since when Redis is away, if it is."""

    since: float | None = None
    said_at: float = -EVERY_S
    back_at: float = -LATE_S
    refused_at: float = -STEADY_S


_outage = _Outage()
_lock = threading.Lock()
_is_child = False


def mark_as_child() -> None:
    """Mark this process as a fork whose parent logs outages. Here only what concerns a run is logged."""
    global _is_child
    _is_child = True


def warn(log: Any, event: str, failure: BaseException, **fields: object) -> None:
    """Log a warning, unless this process logged the same one less than EVERY_S ago."""
    now = time.monotonic()
    if _is_child and "run" not in fields:
        return
    if isinstance(failure, RedisError) or isinstance(failure.__cause__, RedisError):
        note_loss()
        if is_refusal(failure):
            _outage.refused_at = now
    error = reason(failure) if isinstance(failure, RedisError) else str(failure)
    if now - _warned_at.get((event, error), -EVERY_S) < EVERY_S:
        return
    if len(_warned_at) >= MAX_REMEMBERED:
        _warned_at.clear()
    _warned_at[event, error] = now
    log.warning(event, error=error, **fields)


def note_loss() -> None:
    """Record that a connection to Redis was lost. If the caller that looks regularly missed the outage, it still logs its end."""
    now = time.monotonic()
    with _lock:
        if _outage.since is None and now - _outage.back_at > LATE_S:
            _outage.since = now


def failed(failure: BaseException, place: str = "", *, name: str = "") -> None:
    """Record that Redis did not answer the caller that looks regularly. It is logged at once, and then once a minute.

    `name` is that of the process in its log lines.
    """
    now = time.monotonic()
    with _lock:
        if is_refusal(failure):
            _outage.refused_at = now
        if _outage.since is None:
            _outage.since, _outage.said_at = now, -EVERY_S
        if now - _outage.said_at < EVERY_S:
            return
        _outage.said_at, away_s = now, now - _outage.since
    error = str(failure) if isinstance(failure, UnavailableError) else reason(failure, place)
    log.warning("redis_unavailable", error=error, seconds=round(away_s, 1), name=name)


def answered(asked_at: float, *, name: str = "") -> None:
    """Record that Redis answered a call which began at this monotonic time. If it was away before, it is logged that it is back."""
    with _lock:
        since = _outage.since
        if since is None or asked_at < since:
            return
        now = time.monotonic()
        if now - _outage.refused_at < STEADY_S:
            return
        _outage.since, _outage.said_at, _outage.back_at = None, -EVERY_S, now
        _warned_at.clear()
    away_s = round(now - since, 1)
    log.warning("redis_back", note=f"Redis is back after {away_s:g} s", seconds=away_s, name=name)
