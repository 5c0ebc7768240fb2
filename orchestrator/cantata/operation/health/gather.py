"""Facts about a deployment, read in parallel: each part in a thread of its own, so one that hangs does not delay the others."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from typing import Generic, ParamSpec, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from cantata.engine import publisher
from cantata.engine.fleet import load
from cantata.engine.limits import limiter
from cantata.errors import ConfigError, UnavailableError
from cantata.flows.definitions import Budget, Limits
from cantata.ledger import refused_steps
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.cluster import Cluster
from cantata.ledger.redis.connection import Redis, RedisFailure, check, connect, loaded, reason, without_password
from cantata.ledger.redis.keys import key_of
from cantata.operation.embedded import StackStatus
from cantata.operation.health.facts import (
    Facts,
    FleetFacts,
    LimitFacts,
    RedisFacts,
    RedisNode,
    ServiceProbe,
    Unavailable,
)

TIMEOUT_S = 4.0  # for all parts together
PROBE_TIMEOUT_S = 3.0
MAX_BYTES = 10_000
PATHS = {"gateway": "/ready", "Flower": "/healthcheck"}

_opener = build_opener(
    ProxyHandler({})
)  # the environment may name an internet proxy, which must not be asked for local addresses

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, source: str, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> None:
        """Start the call. `source` is named in the reason if there is no answer in time."""
        self._source = source
        self._function = partial(function, *args, **more)
        self._future: Future[T] = Future()
        self.started_at = time.monotonic()
        threading.Thread(
            target=self._run, daemon=True
        ).start()  # a daemon: a call that hangs must not keep the process alive

    @property
    def is_over(self) -> bool:
        """True once the call has ended."""
        return self._future.done()

    def _run(self) -> None:
        try:
            self._future.set_result(self._function())
        except BaseException as error:  # noqa: BLE001  # the edge of a thread; `wait` raises it
            self._future.set_exception(error)

    def wait(self, deadline: float) -> T | Unavailable:
        """Return the result; Unavailable for an UnavailableError, or if there is none by the deadline (of the monotonic clock).

        Raises any other error of the call.
        """
        concurrent.futures.wait([self._future], max(0.0, deadline - time.monotonic()))
        if not self.is_over:
            return Unavailable(
                f"{self._source} gave no answer within {time.monotonic() - self.started_at:.0f} s".strip()
            )
        try:
            return self._future.result()
        except UnavailableError as error:
            return Unavailable(str(error))


def probe_service(name: str, url: str) -> ServiceProbe:
    """Return the answer of a service to a health request at its address."""
    started = time.perf_counter()
    fault = ""
    try:
        with _opener.open(f"{url.rstrip('/')}{PATHS[name]}", timeout=PROBE_TIMEOUT_S) as answer:
            answer.read(MAX_BYTES)
    except HTTPError as error:
        with error:
            fault = _error_message(error.read(MAX_BYTES)) or f"status {error.code}"
    except TimeoutError:
        return ServiceProbe(name, url, fault=f"does not answer within {PROBE_TIMEOUT_S:.0f} s")
    except (OSError, HTTPException, ValueError) as error:
        return ServiceProbe(name, url, fault=f"cannot be reached ({getattr(error, 'reason', None) or error})")
    return ServiceProbe(name, url, answer_ms=(time.perf_counter() - started) * 1000, fault=fault)


def _error_message(body: bytes) -> str:
    """Return the message in an error body of the gateway; empty if there is none."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""


def gather(
    url: str,
    *,
    version: str,
    broker_url: str | None = None,
    stack: StackStatus | None = None,
    gateway_url: str | None = None,
    flower_url: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Facts:
    """Return the facts that can be read within `timeout_s`. Raises ConfigError for an invalid URL."""
    source = f"Redis at {without_password(url)}"
    redis = BackgroundCall(source, read_redis, url)
    fleet = BackgroundCall(source, read_fleet, url)
    limits = BackgroundCall(source, read_limits, url)
    addresses = [(name, address) for name, address in (("gateway", gateway_url), ("Flower", flower_url)) if address]
    services = [BackgroundCall("", probe_service, name, address) for name, address in addresses]
    deadline = time.monotonic() + timeout_s
    has_broker = publisher.sends(broker_url)
    if has_broker:
        from cantata.engine.dispatch import user_app  # noqa: PLC0415  # as below
        from cantata.engine.dispatch.celery_app import make_app  # noqa: PLC0415  # importing Celery takes a second: the others answer in it
        from cantata.engine.dispatch.queues import waiting  # noqa: PLC0415  # likewise

        app = make_app(url, broker_url, beside=user_app.configured())
    found = fleet.wait(deadline)
    if not isinstance(found, Unavailable) and has_broker:
        messages = BackgroundCall("the broker", waiting, app, sorted(found.queue_names)).wait(deadline)
        found = replace(
            found, queues=messages if isinstance(messages, Unavailable) else load.queues(found.load, messages)
        )
    elif not isinstance(found, Unavailable):
        found = replace(
            found, queues=load.queues(found.load, dict.fromkeys(found.queue_names, load.Waiting(0))), has_broker=False
        )
    running = stack if stack is not None and stack.running else None
    return Facts(
        version=version,
        redis=redis.wait(deadline),
        fleet=found,
        limits=limits.wait(deadline),
        services=[
            _service(call.wait(deadline), name, address)
            for call, (name, address) in zip(services, addresses, strict=True)
        ],
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
        return RedisFacts(
            [RedisNode(name, info) for name, info in nodes.items()], answer_ms, load.write_error(redis, address)
        )


def read_fleet(url: str) -> FleetFacts:
    """Return the workers, queues and runs, without the messages in the broker. Raises UnavailableError."""
    with _connected(url) as redis:
        found = load.measure(redis)
        served = {queue for worker in found.workers for queue in worker.queues}
        names = {*load.USUAL_QUEUES, *served, *load.list_ready_queues(redis), *found.paused_queues}
        parked = Ledger(redis, patience_s=TIMEOUT_S).parked.find()
        return FleetFacts(
            found,
            names,
            refused_steps=refused_steps.recent(redis),
            parked=parked,
            last_ended=load.recent_outcomes(redis),
        )


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
            yield redis
    except RedisFailure as error:
        raise UnavailableError(f"{reason(error, without_password(url))}{loaded(url, error)}") from error


def _service(found: ServiceProbe | Unavailable, name: str, url: str) -> ServiceProbe:
    return found if isinstance(found, ServiceProbe) else ServiceProbe(name, url, fault=found.reason)
