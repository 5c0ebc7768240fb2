"""How long one client's run waits while another client has thousands waiting."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import ChainRun
from cantata.flows.graph import START
from cantata.ledger.runs.results import is_over
from tests.bench.measure import request_of
from tests.bench.shapes import long_shape

CROWD = 5000
SPARE = 200
TARGET_S = 2.0
PATIENCE_S = 600.0
RUN_S = 3600.0  # what the runs are given: none may time out while it waits


@dataclass(frozen=True)
class Fairness:
    """What the single run saw, in seconds from its acceptance."""

    waiting: int
    """runs of the crowd, not over when the single one came"""
    planned_s: float
    started_s: float
    finished_s: float
    alone_s: float
    """the same run on the same stack before the crowd came"""


def measure_fairness(client: EmbeddedClient) -> Fairness:
    """Submit the crowd, then the single run by another client."""
    request = {**request_of(long_shape(3), "nap"), "timeout": RUN_S}
    with Client(client.redis_url, config=client.definitions) as other:
        for _ in range(5):  # workers learn what a step costs
            alone = other.submit_chain(request)
            alone.wait(PATIENCE_S)
            time.sleep(0.5)
        crowd: list[ChainRun] = []
        while len(crowd) < CROWD:  # the workers do some meanwhile
            crowd += [
                client.submit_chain(request, labels={"tenant": "crowd"}) for _ in range(CROWD - len(crowd) + SPARE)
            ]
            crowd = [run for run in crowd if not is_over(run.status())]
        sys.stderr.write(f"{len(crowd)} runs wait; one more is submitted by another client …\n")
        single = other.submit_chain(request, labels={"tenant": "single"})
        single.wait(PATIENCE_S)
        return Fairness(len(crowd), *_times_s(single), alone_s=_times_s(alone)[-1])


def _times_s(run: ChainRun) -> tuple[float, float, float]:
    """Seconds until a run was planned, began its first step, and was over: by Redis's clock, from its events."""
    events = list(run.log())
    accepted = events[0].at_ms
    planned = next(event.at_ms for event in events if event.type == "expanded" and event.step == START)
    started = next(event.at_ms for event in events if event.type == "started" and event.step != START)
    return (planned - accepted) / 1000, (started - accepted) / 1000, (events[-1].at_ms - accepted) / 1000
