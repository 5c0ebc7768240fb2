"""Redis event streams of runs: read and follow from any offset, without gaps or repetitions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import cast

from redis import Redis

from cantata.errors import UnknownRunError
from cantata.flows import events as event_types
from cantata.flows.events import RunEvent
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import Entry, streams_in
from cantata.ledger.redis.redis_errors import with_retries

PAGE = 500  # events in one read
BLOCK_MS = 1000  # how long one read waits, below the socket's timeout
PATIENCE_S = 30.0  # how long Redis may be unavailable

_with_retries = partial(with_retries, patience_s=PATIENCE_S, note="; the run goes on")


def read(redis: Redis, run_id: str, *, after: int = 0, most: int = PAGE) -> list[RunEvent]:
    """Return the events with an offset above `after`, oldest first, without waiting."""
    entries = cast(
        "list[tuple[str, dict[str, str]]]",
        redis.xrange(f"{run_key(redis, run_id)}:log", min=f"(0-{after}", max="+", count=most),
    )
    return [event_of(run_id, entry_id, fields) for entry_id, fields in entries]


def follow(redis: Redis, run_id: str, *, after: int = 0, timeout_s: float | None = None) -> Iterator[RunEvent]:
    """Yield events as they arrive, up to `closed` inclusive, or until `timeout_s` has passed; existing ones are yielded even if it is 0.

    After a lost connection, reading goes on at the same offset. Raises UnknownRunError if the run is gone.
    """
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    key, was_closed = f"{run_key(redis, run_id)}:log", False
    while True:
        entries = _wait(redis, key, f"0-{after}", give_up)
        if not entries:
            if was_closed:
                return
            if not _with_retries(lambda: redis.exists(key)):
                raise UnknownRunError.of(run_id)
            was_closed = bool(
                _with_retries(lambda: redis.exists(f"{run_key(redis, run_id)}:closed"))
            )  # then all its events can be read
        for entry_id, fields in entries:
            event = event_of(run_id, entry_id, fields)
            after = event.seq
            yield event
            if event.ends_run:
                return
        if len(entries) < PAGE and give_up is not None and time.monotonic() >= give_up:
            return


def wait_closed(redis: Redis, run_id: str, *, timeout_s: float | None = None) -> bool:
    """Wait until a run is over; return False if `timeout_s` passed first."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    while not _wait(redis, f"{run_key(redis, run_id)}:closed", "0-0", give_up):
        if give_up is not None and time.monotonic() >= give_up:
            return False
    return True


def _wait(redis: Redis, key: str, after: str, give_up: float | None) -> list[Entry]:
    left_ms = BLOCK_MS if give_up is None else int(min(BLOCK_MS, max(1, (give_up - time.monotonic()) * 1000)))
    reply = _with_retries(lambda: redis.xread({key: after}, count=PAGE, block=left_ms))
    return streams_in(reply).get(key, [])


def event_of(run_id: str, entry_id: str, fields: Mapping[str, str]) -> RunEvent:
    """Return the event in an entry of a run's stream."""
    return event_types.event_of(
        json.loads(fields["d"]) if fields["d"] else None,
        seq=int(entry_id.split("-")[1]),
        run_id=run_id,
        at_ms=int(fields["at"]),
        type=fields["t"],
        step=fields["s"] or None,
        attempt=int(fields["a"]) if fields["a"] else None,
        worker=fields["w"] or None,
    )
