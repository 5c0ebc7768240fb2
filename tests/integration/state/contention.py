"""Worker processes that ask one limiter for calls as fast as it lets them, each with many steps that wait."""

from __future__ import annotations

import heapq
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import fmean
from typing import cast

from redis import Redis

from cantata.engine.limits.limiter import Ask, Granted, Limiter, Wait
from cantata.flows.definitions import Limits, Rates
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.ledger.scripts import Scripts

PROCESSES = 8
STEPS = 20
"""Steps of one process that ask, and ask again when they are done."""
MODEL = "openai/gpt-4o-mini"
LOG = "log"
"""A list of what `run` answers."""
START_S = 50.0
SWEEP_S = 0.02
"""Half a bucket, as the sweep of a fleet is half a bucket of a minute."""
DELAYS = "delays"
"""A list of the shares of their time that the processes waited for a processor."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for."""

    rates: Mapping[str, int]
    window_s: float
    lasts_s: float
    hold_s: float = 0.0
    tokens: int = 1
    used: int = 1


class _Noted(Scripts):
    """Scripts that write down when calls go and end."""

    def text(self, name: str) -> str:
        short = name.partition("/")[2]
        note = f"\nredis.call('RPUSH', '{LOG}', now .. ' {short} ' .. redis.call('ZCARD', P .. ':active'))"
        text = super().text(name)
        for ending in ("\n  return {'granted'}\n", "\nreturn advance()\n"):
            text = text.replace(ending, note + ending)
        return text


class Watched(Limiter):
    """A limiter that writes down when calls go and end."""

    scripts = _Noted()


def run(redis: Redis, load: Load) -> tuple[list[tuple[int, str, int]], float]:
    """Have the processes work.

    Answers what happened to calls: when by Redis's clock (ms), how, and how many were under way then; and the share of their time that the
    processes waited for a processor, on average.
    """
    forks = multiprocessing.get_context("forkserver")  # of a process that has imported this module, and has no thread
    forks.set_forkserver_preload([__name__])
    barrier = forks.Barrier(PROCESSES)
    path = cast(str, redis.connection_pool.connection_kwargs["path"])
    processes = [
        forks.Process(target=_work, args=(f"unix://{path}", str(n), load, barrier), daemon=True)
        for n in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    log = (text.split() for text in cast("list[str]", redis.lrange(LOG, 0, -1)))
    delayed = fmean(map(float, cast("list[str]", redis.lrange(DELAYS, 0, -1))))
    redis.delete(LOG, DELAYS)
    return [(int(at), what, int(under_way)) for at, what, under_way in log], delayed


def _work(url: str, name: str, load: Load, barrier: Barrier) -> None:
    redis = connect(url)
    limiter = Watched(Ledger(redis), window_s=load.window_s)
    limits = Limits(models={MODEL: Rates.model_validate(load.rates)})
    limiter.renew([])
    mail = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py
    mail.subscribe(name)
    barrier.wait(START_S)
    waited_s, ends_at = _waited_s(), time.monotonic() + load.lasts_s
    agenda = [(time.monotonic(), f"{name}.{n}", 1, "ask") for n in range(STEPS)]
    newest = dict.fromkeys((step for _, step, _, _ in agenda), 1)
    renew_at = 0.0
    sweeps, sweep_at = name == "0", 0.0 if name == "0" else ends_at
    while (now := time.monotonic()) < ends_at:
        if now > renew_at:
            limiter.renew([_holder(step, n) for step, n in newest.items()])
            renew_at = now + 1
        if sweeps and now > sweep_at:
            _tell(redis, limiter.sweep())
            sweep_at = now + SWEEP_S
        while called := mail.get_message(
            timeout=max(0, min(agenda[0][0] if agenda else ends_at, sweep_at, ends_at) - time.monotonic())
        ):
            step = str(called["data"])
            heapq.heappush(agenda, (time.monotonic(), step, newest[step], "ask"))
        if not agenda or agenda[0][0] > time.monotonic():
            continue
        _, step, n, what = heapq.heappop(agenda)
        if n != newest[step]:
            continue  # it went meanwhile
        if what == "end":
            _tell(redis, limiter.settle(_holder(step, n), tokens=load.used, usd=None))
            newest[step] = n + 1
            heapq.heappush(agenda, (time.monotonic(), step, n + 1, "ask"))
            continue
        if (step, n) in {(other, m) for _, other, m, w in agenda if w == "end"}:
            continue  # it went, and was called twice
        match limiter.take(Ask(_holder(step, n), MODEL, load.tokens), limits):
            case Granted():
                heapq.heappush(agenda, (time.monotonic() + load.hold_s, step, n, "end"))
            case Wait():
                pass
            case other:
                raise AssertionError(other)
    redis.rpush(DELAYS, (_waited_s() - waited_s) / load.lasts_s)


def _waited_s() -> float:
    """How long this process could run and had no processor (Linux, /proc/self/schedstat)."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def _holder(step: str, n: int) -> str:
    return f"run|{n}|worker|{step}"


def _tell(redis: Redis, called: list[str]) -> None:
    for ticket in called:
        step = ticket.partition("|")[2]
        redis.publish(step.partition(".")[0], step)
