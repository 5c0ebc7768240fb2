"""Redis's clock, estimated by this process: the one clock that all machines share."""

from __future__ import annotations

import time

from redis import Redis

_ahead_s = 0.0  # how far Redis's clock is ahead of this machine's


def synchronize(redis: Redis) -> float:
    """Read the time of Redis, base later estimates on it, and return it in seconds."""
    since = time.time()
    return note(redis.time(), since)


def note(reply: tuple[int, int], since: float) -> float:
    """Base later estimates on a reply to TIME, which was requested at `since` by this machine's clock; return its time in seconds."""
    global _ahead_s
    seconds, micros = reply
    now = seconds + micros / 1e6
    _ahead_s = now - (since + time.time()) / 2
    return now


def now() -> float:
    """Return the time in seconds by Redis's clock, as last synchronized."""
    return time.time() + _ahead_s


def off_s() -> float:
    """Return how far this machine's clock is ahead of Redis's, in seconds."""
    return -_ahead_s
