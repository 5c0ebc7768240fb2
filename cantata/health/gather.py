"""Facts about a deployment, read in parallel: each part in a thread of its own, so one that hangs does not delay the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cantata.embedded import StackStatus
from cantata.errors import ConfigError, UnavailableError
from cantata.health.facts import Facts, Fleet, LimitFacts, RedisFacts, RedisNode, ServiceProbe, Unavailable
from cantata.health.http_probes import probe_service
from cantata.health.probe import BackgroundCall
from cantata.models.definitions import Budget, Limits
from cantata.state.fleet import load, refused_steps
from cantata.state.limits import limiter
from cantata.state.redis.cluster import Cluster
from cantata.state.redis.connection import Redis, RedisFailure, check, connect, reason, without_password
from cantata.state.redis.keys import SHARDS, key_of, shard_key

TIMEOUT_S = 4.0  # for all parts together


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """The fleet as Redis has it: all but the messages in the broker."""

    fleet: load.FleetLoad
    queues: set[str]
    """Queues that have workers or ready steps."""
    last_ended: Mapping[str, int]
    """Outcomes of the last runs that closed: status → count."""
    refused_steps: Sequence[str]
    """Steps that workers refused in the last minute, and the reason of each."""


def gather(
    url: str, *, version: str, broker_url: str | None = None, stack: StackStatus | None = None, gateway_url: str | None = None,
    flower_url: str | None = None, timeout_s: float = TIMEOUT_S,
) -> Facts:  # fmt: skip
    """Return the facts that can be read within `timeout_s`. Raises ConfigError for an invalid URL."""
    source = f"Redis at {without_password(url)}"
    redis = BackgroundCall(source, read_redis, url)
    fleet = BackgroundCall(source, read_fleet, url)
    limits = BackgroundCall(source, read_limits, url)
    addresses = [(name, address) for name, address in (("gateway", gateway_url), ("Flower", flower_url)) if address]
    services = [BackgroundCall("", probe_service, name, address) for name, address in addresses]
    from cantata.dispatch.celery_app import make_app  # noqa: PLC0415  # importing Celery takes a second, in which the others answer
    from cantata.dispatch.queues import waiting  # noqa: PLC0415  # likewise

    deadline = time.monotonic() + timeout_s
    app, record = make_app(url, broker_url), fleet.wait(deadline)
    if not isinstance(record, Unavailable):
        messages = BackgroundCall("the broker", waiting, app, sorted(record.queues))
    running = stack if stack is not None and stack.running else None
    return Facts(
        version=version,
        redis=redis.wait(deadline),
        fleet=record if isinstance(record, Unavailable) else _fleet(record, messages.wait(deadline)),
        limits=limits.wait(deadline),
        services=[_service(call.wait(deadline), name, address) for call, (name, address) in zip(services, addresses, strict=True)],
        broker=without_password(broker_url or ""),
        stack_home=running.home if running else "",
        dead_processes=[each.name for each in running.processes if not each.alive] if running else [],
        code_fault=running.code_fault if running else "",
    )


def read_redis(url: str) -> RedisFacts:
    """Return the state of the Redis of the runs. Raises UnavailableError if runs cannot be stored there."""
    address = without_password(url)
    with _connected(url) as redis:
        check(redis, url=url)
        nodes = redis.each_node("INFO") if isinstance(redis, Cluster) else {address: redis.info()}
        started = time.perf_counter()
        redis.get(key_of(redis, load.SWEPT_KEY))
        answer_ms = (time.perf_counter() - started) * 1000
        return RedisFacts([RedisNode(name, info) for name, info in nodes.items()], answer_ms, _write_error(redis, address))


def _write_error(redis: Redis, address: str) -> str:
    """Return the reason why a shard refuses writes; empty if none does. The writes change nothing: the keys do not exist."""
    with redis.pipeline(transaction=False) as pipe:
        for shard in range(SHARDS):
            pipe.set(f"{shard_key(redis, shard)}:asked", "1", xx=True)
        answers = pipe.execute(raise_on_error=False)
    return next((reason(answer, address) for answer in answers if isinstance(answer, RedisFailure)), "")


def read_fleet(url: str) -> FleetRecord:
    """Return the workers, queues and runs. Raises UnavailableError."""
    with _connected(url) as redis:
        found = load.measure(redis)
        served = {queue for worker in found.workers for queue in worker.queues}
        queues = {*load.USUAL_QUEUES, *served, *load.list_ready_queues(redis)}
        return FleetRecord(found, queues, load.recent_outcomes(redis), refused_steps.recent(redis))


def read_limits(url: str) -> LimitFacts | Unavailable | None:
    """Return the limits of the local configuration and their use; None if it sets none. Raises UnavailableError."""
    from cantata.config import loading  # noqa: PLC0415  # importing the parsers takes a while, in which the others answer

    try:
        path = loading.find()
        limits = loading.load(path).limits if path is not None else Limits()
    except (ConfigError, OSError) as error:
        return Unavailable(str(error).partition("\n")[0])
    if not limits.models and limits.budgets.day == Budget():
        return None
    with _connected(url) as redis:
        return LimitFacts(limits, limiter.read_usage(redis, limits.models))


@contextmanager
def _connected(url: str) -> Iterator[Redis]:
    """Connect for the block. Raises UnavailableError, with the reason in a sentence, for an error of Redis."""
    try:
        with connect(url) as redis:
            if not isinstance(redis, Cluster):  # a Redis that refuses writes also refuses the PING of a new connection
                redis.connection_pool.connection_kwargs["health_check_interval"] = 0
            yield redis
    except RedisFailure as error:
        raise UnavailableError(reason(error, without_password(url))) from error


def _fleet(record: FleetRecord, messages: dict[str, load.Waiting] | Unavailable) -> Fleet:
    found = record.fleet
    queues = messages if isinstance(messages, Unavailable) else load.queues(found, messages)
    return Fleet(
        found.workers, found.sweep_age_s, found.runs_open, found.totals, queues, record.refused_steps, record.last_ended,
        found.dead_letters,
    )  # fmt: skip


def _service(found: ServiceProbe | Unavailable, name: str, url: str) -> ServiceProbe:
    return found if isinstance(found, ServiceProbe) else ServiceProbe(name, url, fault=found.reason)
