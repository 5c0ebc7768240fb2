"""What a provider sees of a rate: requests leave after they were counted, some much later, and some workers die in between."""

from __future__ import annotations

import random
from bisect import bisect_left
from heapq import heapify, heappop, heappush

import pytest
from redis import Redis

from cantata.engine.limits.limiter import Ask, Granted, Wait
from cantata.flows.definitions import Limits, Rates
from cantata.ledger.intervals import SWEEP_S
from cantata_workers.models.permits import REDATE_AFTER_S
from tests.integration.state.limits_stage import MODEL, Stage, holder

RPM = 30
WINDOW_S = 60.0
LIMITS = Limits(models={MODEL: Rates(rpm=RPM)})
PROCESSES = 3
TRAVELS_S = 0.4
"""How long a request is on its way, at most, once it has left."""
LAGS_S = (0.0, 0.01, 0.3, 2.0, 9.0)
"""How long a request takes to leave once it was counted: a connection is made, modules are imported, the machine stalls."""


@pytest.mark.parametrize("seed", range(5))
def test_a_provider_never_sees_more_than_the_limit_in_a_minute(valkey: Redis, seed: int) -> None:
    valkey.flushdb()
    stage, chance = Stage(valkey), random.Random(seed)
    stage.sleep(chance.uniform(0.8, 0.999))  # what is counted at the end of a second leaves the window first
    arrivals: list[float] = []
    dies_at = stage.now_ms / 1000 + chance.uniform(1, 100)
    agenda: list[tuple[float, str, int, str]] = [(stage.now_ms / 1000, "ask", n, "") for n in range(RPM * 5)]
    agenda.append((stage.now_ms / 1000 + 0.3, "sweep", 0, ""))
    heapify(agenda)
    while len(arrivals) < RPM * 5:
        at, what, n, name = heappop(agenda)
        stage.sleep(max(0.0, at - stage.now_ms / 1000))
        if what == "sweep":
            heappush(agenda, (at + SWEEP_S, "sweep", 0, ""))
            for ticket in stage.sweep():
                heappush(agenda, (at + chance.choice((0.01, 0.8)), "ask", int(ticket.removeprefix("run|")), ""))
            continue
        is_dead = n % PROCESSES == 0 and at >= dies_at
        if what == "ask":
            name = holder(f"{n}", attempt=2 if is_dead else 1)  # another worker does what the dead one had
            answer = stage.take(Ask(name, MODEL, 1), LIMITS)
            if isinstance(answer, Wait):
                continue  # the sweep calls it
            assert answer == Granted()
            lag = chance.choice(LAGS_S)
            heappush(agenda, (at + lag, "leave" if lag <= REDATE_AFTER_S else "leave late", n, name))
        elif is_dead and "|1|" in name:
            heappush(agenda, (at + 2, "ask", n, ""))
        else:
            if what == "leave late":
                assert stage.redate(name)
            arrivals.append(at + chance.uniform(0, TRAVELS_S))
            for ticket in stage.settle(name, tokens=1, usd=None):
                heappush(agenda, (at + 0.01, "ask", int(ticket.removeprefix("run|")), ""))

    arrivals.sort()
    assert max(bisect_left(arrivals, at + WINDOW_S) - i for i, at in enumerate(arrivals)) <= RPM
