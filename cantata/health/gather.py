"""Finds out how all stands: each part in a thread of its own, so that one that hangs costs no other its time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cantata.embedded import StackStatus
from cantata.errors import ConfigError, UnavailableError
from cantata.health.facts import Door, Facts, Fleet, Missing, Node, Shared, Store
from cantata.health.http_probes import ask
from cantata.health.probe import Part
from cantata.models.definitions import Budget, Limits
from cantata.state.fleet import load, refused_steps
from cantata.state.limits import limiter
from cantata.state.redis.cluster import Cluster
from cantata.state.redis.connection import Redis, RedisFailure, check, connect, reason, without_password
from cantata.state.redis.keys import SHARDS, key_of, shard_key

PATIENCE_S = 4.0  # for all parts together


@dataclass(frozen=True, slots=True)
class Look:
    """The fleet, but for what waits in the broker."""

    standing: load.FleetLoad
    queues: set[str]
    """Those that somebody serves or waits in."""
    last_ended: Mapping[str, int]
    """How the last runs that ended did."""
    refused_steps: Sequence[str]
    """Steps that workers handed back in the last minute, and why."""


def gather(
    url: str, *, version: str, broker_url: str | None = None, stack: StackStatus | None = None, gateway_url: str | None = None,
    flower_url: str | None = None, patience_s: float = PATIENCE_S,
) -> Facts:  # fmt: skip
    """What can be found out within `patience_s`. Raises ConfigError if a URL is none."""
    redis = f"Redis at {without_password(url)}"
    store, fleet, shared = Part(redis, look_at_store, url), Part(redis, look_at_fleet, url), Part(redis, look_at_limits, url)
    named = [(name, address) for name, address in (("gateway", gateway_url), ("Flower", flower_url)) if address]
    doors = [Part("", ask, name, address) for name, address in named]
    from cantata.dispatch.celery_app import make_app  # noqa: PLC0415  # Celery takes a second to load, in which the others answer
    from cantata.dispatch.queues import waiting  # noqa: PLC0415  # likewise

    give_up = time.monotonic() + patience_s
    app, standing = make_app(url, broker_url), fleet.wait(give_up)
    if not isinstance(standing, Missing):
        messages = Part("the broker", waiting, app, sorted(standing.queues))
    return Facts(
        version=version,
        store=store.wait(give_up),
        fleet=standing if isinstance(standing, Missing) else _fleet(standing, messages.wait(give_up)),
        shared=shared.wait(give_up),
        doors=[_door(door.wait(give_up), name, address) for door, (name, address) in zip(doors, named, strict=True)],
        broker=without_password(broker_url or ""),
        stack=stack.home if stack is not None and stack.running else "",
        code_fault=stack.code_fault if stack is not None and stack.running else "",
        dead=[each.name for each in stack.processes if not each.alive] if stack is not None and stack.running else [],
    )


def look_at_store(url: str) -> Store:
    """How the Redis of the runs stands. Raises UnavailableError if runs cannot be kept there."""
    place = without_password(url)
    with _asking(url) as redis:
        check(redis, url=url)
        nodes = redis.each_node("INFO") if isinstance(redis, Cluster) else {place: redis.info()}
        since = time.perf_counter()
        redis.get(key_of(redis, load.SWEPT_KEY))
        answer_ms = (time.perf_counter() - since) * 1000
        return Store([Node(name, info) for name, info in nodes.items()], answer_ms, _refusal(redis, place))


def _refusal(redis: Redis, place: str) -> str:
    """Why writes are refused, wherever runs are kept; empty if none is. What is written changes nothing: there is no such key."""
    with redis.pipeline(transaction=False) as pipe:
        for shard in range(SHARDS):
            pipe.set(f"{shard_key(redis, shard)}:asked", "1", xx=True)
        answers = pipe.execute(raise_on_error=False)
    return next((reason(answer, place) for answer in answers if isinstance(answer, RedisFailure)), "")


def look_at_fleet(url: str) -> Look:
    """Who works, and on what. Raises UnavailableError."""
    with _asking(url) as redis:
        found = load.measure(redis)
        served = {queue for worker in found.workers for queue in worker.queues}
        return Look(
            found, {*load.USUAL_QUEUES, *served, *load.list_ready_queues(redis)}, load.recent_outcomes(redis), refused_steps.recent(redis)
        )


def look_at_limits(url: str) -> Shared | Missing | None:
    """How the limits of the configuration here stand; None if it names none. Raises UnavailableError."""
    from cantata.config import loading  # noqa: PLC0415  # what reads documents takes a while to load, in which the others answer

    try:
        path = loading.find()
        named = loading.load(path).limits if path is not None else Limits()
    except (ConfigError, OSError) as error:
        return Missing(str(error).partition("\n")[0])
    if not named.models and named.budgets.day == Budget():
        return None
    with _asking(url) as redis:
        return Shared(named, limiter.read_usage(redis, named.models))


@contextmanager
def _asking(url: str) -> Iterator[Redis]:
    """A client for a moment. What goes wrong is told in a sentence, as UnavailableError."""
    try:
        with connect(url) as redis:
            if not isinstance(redis, Cluster):  # a Redis that takes no writes refuses the PING of a new connection too
                redis.connection_pool.connection_kwargs["health_check_interval"] = 0
            yield redis
    except RedisFailure as error:
        raise UnavailableError(reason(error, without_password(url))) from error


def _fleet(look: Look, messages: dict[str, load.Waiting] | Missing) -> Fleet:
    found = look.standing
    queues = messages if isinstance(messages, Missing) else load.queues(found, messages)
    return Fleet(
        found.workers, found.sweep_age_s, found.runs_open, found.totals, queues, look.refused_steps, look.last_ended, found.dead_letters
    )


def _door(found: Door | Missing, name: str, url: str) -> Door:
    return found if isinstance(found, Door) else Door(name, url, fault=found.why)
