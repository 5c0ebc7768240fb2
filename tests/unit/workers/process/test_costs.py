"""Costs of work, as one process knows them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from cantata.engine.limits.step_costs import MIN_SAMPLES, Costs, Measured, Work
from cantata.flows.graph import Spec

ONE, OTHER = "a" * 64, "b" * 64
SPEC = Spec(kind="tool.call", work="tools:x")


@pytest.fixture
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def recorded(costs: Costs, definitions: str, took_ms: float, times: int = MIN_SAMPLES) -> None:
    for _ in range(times):
        costs.record(definitions, "tools:x", took_ms)


def test_work_is_cheap_when_it_was_measured_so_or_is_declared_so() -> None:
    costs = Costs()

    assert not costs.is_cheap(ONE, SPEC), "unknown"
    recorded(costs, ONE, 1.0)
    assert costs.is_cheap(ONE, SPEC)
    assert "\ntools:x\n" in costs.cheap_names(ONE)
    recorded(costs, ONE, 50.0, times=30)
    assert not costs.is_cheap(ONE, SPEC)
    assert costs.cheap_names(ONE) == "\n"
    assert costs.is_cheap(ONE, SPEC.model_copy(update={"cheap": True}))
    assert costs.is_cheap(ONE, Spec(kind="chain.branch", decides=True))


def test_the_same_name_in_another_configuration_is_other_work() -> None:
    costs = Costs()

    recorded(costs, ONE, 1.0)
    recorded(costs, OTHER, 10_000.0)

    assert costs.is_cheap(ONE, SPEC)
    assert not costs.is_cheap(OTHER, SPEC)
    assert costs.cheap_names(OTHER) == "\n"


def test_what_is_known_is_that_of_the_fleet_and_each_measurement_is_shared_once() -> None:
    costs, shared = Costs(), []

    def share(measured: Mapping[Work, Measured]) -> dict[str, dict[str, float]]:
        shared.append(dict(measured))
        return {ONE[:16]: {"tools:x": 80.0}}

    recorded(costs, ONE, 1.0, times=MIN_SAMPLES - 1)
    costs.exchange(share)
    assert shared == [{}], "too few to tell"
    assert not costs.is_cheap(ONE, SPEC), "others saw it take long"

    recorded(costs, ONE, 1.0, times=1)
    costs.exchange(share)
    costs.exchange(share)
    assert [each.count for step in shared for each in step.values()] == [MIN_SAMPLES]


@pytest.mark.usefixtures("_switching_often")
def test_names_are_read_while_other_threads_measure() -> None:
    costs, ended, failures = Costs(), threading.Event(), []

    def measure(thread: int) -> None:
        for number in range(3000):
            for _ in range(MIN_SAMPLES):
                costs.record(ONE, f"tools:{thread}/{number}", 1.0)
        ended.set()

    def read() -> None:
        while not ended.is_set():
            try:
                costs.cheap_names(ONE)
                costs.exchange(lambda measured: {ONE[:16]: {name: 1.0 for _, name in measured}})
            except RuntimeError as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(2)] + [
        threading.Thread(target=read)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
