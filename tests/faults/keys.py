"""Says of each key in Redis whose it is: of a run, a session, a shard, the shared limits, a memory, the fleet or the broker.

A key goes with its owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY
from cantata.flows.wire import RUN_OVER
from cantata.ledger.redis.keys import SHARDS, run_key, shard_key
from tests.faults.past import Violation

RUN_KEY = re.compile(r"cantata:\{\d+\}:run:([^:]+)")
DEFINITIONS_KEY = re.compile(r"cantata:\{(\d+)\}:definitions:([0-9a-f]+)")
LASTING = re.compile(
    r"cantata:\{\d+\}:(runs|finished|leases|ready|due|tasks|sessions(:[^:]*)?|schedules|sizes|bytes|log_bytes|unfinished)"  # looked at
    r"|cantata:\{\d+\}:(items|item_ends|names)"  # a shard's, entries go with their item
    r"|cantata:\{\d+\}:(left|revoked)"  # which the next sweep empties
    r"|cantata:\{\d+\}:parked"  # what a sweep could not handle: entries go with their run, or when somebody decides
    r"|cantata:\{\d+\}:totals"  # a shard's, counters of a few fields
    r"|cantata:\{\d+\}:(batches:[^:]*|batch:.+)"  # batches, until some time after their end
    r"|cantata:\{memory:.*\}.*:(values:.+|namespaces|lasting|kept|ending|last_ends)"  # what is remembered for good
    r"|cantata:(workers|swept)"  # the fleet's: an entry goes when its worker is stale; when all was swept last
    r"|cantata:(paused_queues|drains)"  # decisions of operators: an entry goes when the queue is resumed, or with its worker
    r"|cantata:\{limits\}:(budgets|active|late|permits|tickets|kept|queues?(:.+)?|model:.+:slots)"  # entries go with their run or call
    r"|cantata:binding.+"  # the broker's
    r"|cantata\.(coordinator|agents|tools|tasks|replies)(\x06\x16\d)?"  # its queues, which are gone when they are empty
    r"|.+\.cantata:control\.pidbox"
    r"|_kombu\.binding.+|unacked(_index|_mutex)?|celery(\x06\x16\d)?|.+\.celery\.pidbox"  # the same of the user's application
)
LIMITS = re.compile(
    re.escape(f"cantata:{LIMITS_KEY}")
    + r":(active|late|permits|tickets|kept|queues|queue:.+|budgets|faults|from"  # calls under way
    r"|model:.+:slots"  # the limits that the suite sets
    r"|budget:run:[^:]+)"
)
STAGED_KEY = re.compile(r"cantata:\{\d+\}:run:[^:]+:fork:")
BUDGET_KEY = re.compile(re.escape(f"cantata:{LIMITS_KEY}") + r":budget:run:(.+)")
WORKING = ("leases", "ready", "due", "tasks", "unfinished")


def check(redis: Redis) -> Iterator[Violation]:
    """Each key has an owner that lives, or expires; nothing is left to do for a run that is over."""
    for key in sorted(cast("Iterator[str]", redis.scan_iter(count=1000))):
        expires = redis.pttl(key) != -1
        run, definitions = RUN_KEY.match(key), DEFINITIONS_KEY.fullmatch(key)
        if STAGED_KEY.match(key):
            if not expires:
                yield Violation("", "", "an expiry of what is laid out for a fork", repr(key))
        elif run:
            yield from _check_run_key(redis, key, run[1], expires)
        elif definitions:
            yield from _check_definitions(redis, key, int(definitions[1]), definitions[2], expires)
        elif key.startswith(f"cantata:{LIMITS_KEY}") and not LIMITS.fullmatch(key):
            yield Violation("", "", "no key of the shared limits but those of the suite's", repr(key))
        elif budget := BUDGET_KEY.fullmatch(key):
            if redis.zscore(f"cantata:{LIMITS_KEY}:budgets", budget[1]) is None:
                yield Violation(budget[1], "", "every budget of a run is looked after until the run is over", repr(key))
        elif not expires and not LASTING.fullmatch(key):
            yield Violation("", "", "an owner or an expiry for each key", f"{key!r}, which has neither")
    for shard in range(SHARDS):
        for name in WORKING:
            for entry in cast("list[str]", redis.zrange(f"{shard_key(None, shard)}:{name}", 0, -1)):
                yield from _check_entry(redis, name, entry)


def _check_run_key(redis: Redis, key: str, run_id: str, expires: bool) -> Iterator[Violation]:
    status = cast("str | None", redis.hget(run_key(None, run_id), "status"))
    if status is None:
        yield Violation(run_id, "", "no key of a run that is not kept", repr(key))
    elif status in RUN_OVER and not expires:
        yield Violation(run_id, "", f"an expiry for each key of a run that is {status}", f"none of {key!r}")
    elif status not in RUN_OVER and expires:
        yield Violation(run_id, "", f"no expiry while the run is {status}", f"one of {key!r}")


def _check_definitions(redis: Redis, key: str, shard: int, digest: str, expires: bool) -> Iterator[Violation]:
    """They know how many open runs hold them, and expire if there is none."""
    runs = [
        run_key(None, run_id) for run_id in cast("list[str]", redis.zrange(f"{shard_key(None, shard)}:runs", 0, -1))
    ]
    found = [cast("list[str | None]", redis.hmget(run, ["status", "definitions"])) for run in runs]
    held = sum(of == digest and status is not None and status not in RUN_OVER for status, of in found)
    counted = cast("str | None", redis.hget(key, "runs"))
    if counted != str(held) or expires != (held == 0):
        yield Violation(
            "", "", f"{held} open runs that hold {key!r}", f"{counted}, and it {'expires' if expires else 'stays'}"
        )


def _check_entry(redis: Redis, name: str, entry: str) -> Iterator[Violation]:
    run_id = entry.split("|")[1 if name == "due" else 0]
    status = cast("str | None", redis.hget(run_key(None, run_id), "status"))
    if status is None or status in RUN_OVER:
        yield Violation(run_id, "", f"nothing in `{name}` of a run that is {status or 'not kept'}", repr(entry))
