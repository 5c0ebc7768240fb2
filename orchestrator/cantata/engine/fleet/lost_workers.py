"""Workers that vanished without a shutdown, or are frozen: lost capacity, which is shown for ten minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from pydantic import Field
from redis import Redis

from cantata.engine.fleet import registry
from cantata.ledger.redis.pieces import ask_shards
from cantata.values import Value

LOST_AFTER_S = 10.0  # without a sign of life; a worker that comes back is a worker again
MAX_STEPS = 20  # of a lost worker, that are shown


class LostWorker(Value):
    """A worker process that did not say that it ends, and gives no sign of life."""

    name: str
    queues: tuple[str, ...]
    host: str
    pid: int
    seen_at: float = Field(description="when it was last seen, by Redis's clock, seconds")
    steps: tuple[str, ...] = Field(default=(), description="the last steps that it had, as `run step`: at most 20")


def lost_workers(redis: Redis) -> list[LostWorker]:
    """Return the workers that were lost within the last ten minutes, the last one first; none if they could not announce themselves."""
    now, entries = registry.entries(redis)
    silent = [each for each in entries if not each.unreadable and each.seen_at < now - LOST_AFTER_S]
    lost = [each for each in silent if each.state != "drained"]  # a drained one took nothing with it
    if not lost or not registry.is_settled(redis):
        return []
    steps = _steps_by_worker(redis)
    found = [
        LostWorker(
            name=each.name,
            queues=each.queues,
            host=each.host,
            pid=each.pid,
            seen_at=each.seen_at,
            steps=steps[each.name],
        )
        for each in lost
    ]
    return sorted(found, key=lambda each: each.seen_at, reverse=True)


def _steps_by_worker(redis: Redis) -> defaultdict[str, tuple[str, ...]]:
    """Return by worker the steps that were lost with it, as the sweep found them: `time|worker|run|step`."""
    shards: Sequence[Sequence[str]] = ask_shards(redis, lambda pipe, key: pipe.lrange(f"{key}:lost_steps", 0, -1))
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for text in sorted((text for shard in shards for text in shard), reverse=True):
        with suppress(ValueError):  # what nobody can read is not shown
            _, owner, run_id, step_id = text.split("|", 3)
            name = owner.rpartition("#")[0]
            if len(found[name]) < MAX_STEPS:
                found[name] += (f"{run_id} {step_id}",)
    return found
