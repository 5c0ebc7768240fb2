"""Reads a run's event stream: from any offset, with no gap and no repeat."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError

from cantata.errors import UnavailableError, UnknownRunError
from cantata.models import events as event_types
from cantata.models.events import RunEvent
from cantata.state.redis.keys import run_key
from cantata.state.redis.redis_errors import is_transient, reason

PAGE = 500  # events in one read
BLOCK_MS = 1000  # how long one read waits, below the socket's time-out
PATIENCE_S = 30.0  # how long Redis may be away
AGAIN_S = 0.1  # between two tries meanwhile

Reply = TypeVar("Reply")


def read(redis: Redis, run_id: str, *, after: int = 0, most: int = PAGE) -> list[RunEvent]:
    """Events with an offset above `after`, oldest first, without waiting."""
    entries = cast(
        "list[tuple[str, dict[str, str]]]", redis.xrange(f"{run_key(redis, run_id)}:log", min=f"(0-{after}", max="+", count=most)
    )
    return [event_of(run_id, entry_id, fields) for entry_id, fields in entries]


def follow(redis: Redis, run_id: str, *, after: int = 0, timeout_s: float | None = None) -> Iterator[RunEvent]:
    """Events as they come, up to and with `closed`, or until `timeout_s` has passed: those that are there are told even if that is no time.

    A lost connection is made again at the same offset.
    Raises UnknownRunError if the run is gone, since its events would be waited for in vain.
    """
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    key = f"{run_key(redis, run_id)}:log"
    while True:
        entries = _wait(redis, key, f"0-{after}", give_up)
        if not entries and not _with_retries(lambda: redis.exists(key)):
            raise UnknownRunError(f"run {run_id!r} is not known here any more")
        for entry_id, fields in entries:
            event = event_of(run_id, entry_id, fields)
            after = event.seq
            yield event
            if event.ends_run:
                return
        if len(entries) < PAGE and give_up is not None and time.monotonic() >= give_up:
            return


def wait_closed(redis: Redis, run_id: str, *, timeout_s: float | None = None) -> bool:
    """Wait until a run is over; False if `timeout_s` passed first."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    while not _wait(redis, f"{run_key(redis, run_id)}:closed", "0-0", give_up):
        if give_up is not None and time.monotonic() >= give_up:
            return False
    return True


def _wait(redis: Redis, key: str, after: str, give_up: float | None) -> list[tuple[str, Mapping[str, str]]]:
    left_ms = BLOCK_MS if give_up is None else int(min(BLOCK_MS, max(1, (give_up - time.monotonic()) * 1000)))
    reply = _with_retries(lambda: redis.xread({key: after}, count=PAGE, block=left_ms))
    if not reply:
        return []
    streams = reply.items() if isinstance(reply, dict) else reply
    _, batches = next(iter(streams))
    entries = batches[0] if isinstance(reply, dict) else batches
    return cast("list[tuple[str, Mapping[str, str]]]", entries)


def _with_retries(call: Callable[[], Reply]) -> Reply:
    """Ask Redis, again while it is away. Raises UnavailableError past PATIENCE_S."""
    since = time.monotonic()
    while True:
        try:
            return call()
        except RedisError as error:
            if not is_transient(error):
                raise
            if time.monotonic() - since > PATIENCE_S:
                raise UnavailableError(f"{reason(error)}; the run goes on without you") from error
            time.sleep(AGAIN_S)


def event_of(run_id: str, entry_id: str, fields: Mapping[str, str]) -> RunEvent:
    """Return the event that an entry of a run's stream is."""
    more = json.loads(fields["d"]) if fields["d"] else {}
    return event_types.event_of(
        **more, seq=int(entry_id.split("-")[1]), run_id=run_id, at_ms=int(fields["at"]), type=fields["t"], step=fields["s"] or None,
        attempt=int(fields["a"]) if fields["a"] else None, worker=fields["w"] or None,
    )  # fmt: skip
