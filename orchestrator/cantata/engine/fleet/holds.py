"""Decisions of operators about the fleet: paused queues, and drained workers. Workers read them with each announcement.

A pause lasts until somebody ends it, whatever restarts. A drain is of one process: it ends with the process, or by `undrain`.
A key of another type holds nothing: who reads decisions must go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import structlog
from pydantic import Field
from redis import Redis
from redis.exceptions import ResponseError

from cantata.ledger.redis import clock, outages
from cantata.ledger.redis.keys import key_of
from cantata.ledger.redis.records import apart, ask_apart, readable
from cantata.text.text_format import utc_minute
from cantata.values import Unreadable, Value, stored

log = structlog.get_logger(__name__)

PAUSED_KEY = "paused_queues"  # hash: queue -> PausedQueue (JSON); an entry goes when somebody resumes the queue
DRAINS_KEY = "drains"  # hash: worker -> Drain (JSON); an entry goes with its worker's process, or by `undrain`


class PausedQueue(Value):
    """A queue from which no worker takes work."""

    queue: str = Field(description="the queue")
    since: float = Field(description="when it was paused, Redis's clock, seconds since 1970")
    by: str = Field(default="", description="who paused it")
    unreadable: Unreadable = ""

    def describe(self) -> str:
        """Return since when it is paused, and by whom, for people."""
        if self.unreadable:
            return f"is paused; its record cannot be read: {self.unreadable}"
        return f"is paused since {utc_minute(self.since)}" + (f" by {self.by}" if self.by else "")


class Drain(Value):
    """The decision that a worker process takes no more work."""

    name: str
    pid: int
    started_at: float
    since: float
    by: str = ""
    exits: bool = Field(default=False, description="whether the process ends when it has finished its steps")


@dataclass(frozen=True, slots=True)
class Holds:
    """The decisions that a worker heeds."""

    paused: Mapping[str, PausedQueue] = field(default_factory=dict)
    drain: Drain | None = None
    """The drain of this worker's process."""


def pause(redis: Redis, queue: str, by: str) -> PausedQueue:
    """Pause a queue; return its pause, which may be an earlier one."""
    pause = PausedQueue(queue=queue, since=clock.synchronize(redis), by=by)
    redis.hsetnx(key_of(redis, PAUSED_KEY), queue, pause.model_dump_json())
    return paused(redis).get(queue, pause)


def resume(redis: Redis, queue: str) -> bool:
    """End the pause of a queue; return False if it was not paused."""
    return bool(redis.hdel(key_of(redis, PAUSED_KEY), queue))


def paused(redis: Redis) -> dict[str, PausedQueue]:
    """Return the paused queues. A queue whose record cannot be read is paused too."""
    (texts,) = ask_apart(redis, [PAUSED_KEY], lambda pipe, key: pipe.hgetall(key_of(redis, key)))
    return _paused(redis, texts)


def drain(redis: Redis, asked: Drain) -> None:
    """Let a worker's process take no more work."""
    redis.hset(key_of(redis, DRAINS_KEY), asked.name, asked.model_dump_json())


def undrain(redis: Redis, name: str) -> bool:
    """Let a worker take work again; return False if it was not drained."""
    key = key_of(redis, DRAINS_KEY)
    was_drained = bool(redis.hexists(key, name))  # the reply of HDEL may be that of a repetition
    redis.hdel(key, name)
    return was_drained


def drain_of(redis: Redis, name: str, *, pid: int, started_at: float) -> Drain | None:
    """Return the drain of a worker's process; None if it is not drained."""
    found = _drain(cast("str | None", redis.hget(key_of(redis, DRAINS_KEY), name)))
    return found if found is not None and (found.pid, found.started_at) == (pid, started_at) else None


def read(redis: Redis, name: str, *, pid: int, started_at: float) -> Holds:
    """Return what a worker's process is to leave alone. The drain of an earlier process of the same name is removed."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.hgetall(key_of(redis, PAUSED_KEY))
        pipe.hget(key_of(redis, DRAINS_KEY), name)
        pauses, text = apart(pipe.execute(raise_on_error=False))
    found = _drain(text)
    if isinstance(text, str) and (found is None or (found.pid, found.started_at) != (pid, started_at)):
        undrain(redis, name)
        found = None
    return Holds(_paused(redis, pauses), found)


def _paused(redis: Redis, texts: Mapping[str, str] | ResponseError) -> dict[str, PausedQueue]:
    if isinstance(texts, ResponseError):
        outages.warn(log, "paused_queues_unreadable", texts)
        return {}
    return {queue: _pause(redis, queue, text) for queue, text in sorted(texts.items())}


def _pause(redis: Redis, queue: str, text: str) -> PausedQueue:
    return readable(
        lambda: stored(PausedQueue, text, ignores_unknown=True),
        lambda why: PausedQueue(queue=queue, since=0.0, unreadable=why),
        remedy=f"resume it with `submit queues resume {queue}`",
    )


def _drain(text: object) -> Drain | None:
    try:
        return Drain.model_validate_json(text, extra="ignore") if isinstance(text, str) else None
    except ValueError:
        return None
