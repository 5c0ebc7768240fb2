"""How the cost of a step grows with the size of its run: wide runs and long ones, of cheap steps."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from cantata.client.client import Client
from tests.bench.measure import kept_bytes, run_once
from tests.bench.shapes import Shape, long_shape, wide_shape

WIDTHS = (10, 100, 1000, 10_000, 50_000)
LENGTHS = (10, 100, 1000)
ENOUGH = 100  # steps from which the cost of a run's start no longer counts
TARGET = 1.2
REPEATS_BELOW = {5000: 7, 20_000: 5, 10**9: 3}  # steps → how often


@dataclass(frozen=True)
class Grown:
    """What runs of one size took and kept."""

    sort: str
    steps: int
    samples_ms: list[float]
    kept_bytes: int

    @property
    def step_ms(self) -> float:
        """The cost of one step."""
        return statistics.median(self.samples_ms) / self.steps

    @property
    def step_bytes(self) -> float:
        """What one step keeps in Redis."""
        return self.kept_bytes / self.steps


def measure_growth(client: Client) -> list[Grown]:
    """Measure each size after one run of it that does not count."""
    sizes = [("wide", wide_shape(width)) for width in WIDTHS] + [("row", long_shape(length)) for length in LENGTHS]
    return [_measure(client, sort, shape) for sort, shape in sizes]


def _measure(client: Client, sort: str, shape: Shape) -> Grown:
    repeats = next(times for below, times in REPEATS_BELOW.items() if shape.steps < below)
    runs = [run_once(client, shape, "noop") for _ in range(repeats + 1)]
    grown = Grown(sort, shape.steps, [took_ms for took_ms, _ in runs[1:]], kept_bytes(client.redis, runs[-1][1]))
    sys.stderr.write(f"{shape.name}: {grown.step_ms:.3f} ms a step, {grown.step_bytes:.0f} bytes a step\n")
    return grown


def growth(costs: Sequence[float]) -> float:
    """How much dearer a step is than in the cheapest smaller run, at most: costs by size, the smallest first.

    That a step is cheaper in a larger run, which has the cost of its start once, is no growth.
    """
    return max(cost / min(costs[: place + 1]) for place, cost in enumerate(costs))


def verdicts(grown: Sequence[Grown]) -> list[str]:
    """Whether the cost of a step stays the same, a line for each sort and measure."""
    lines = []
    for sort in ("wide", "row"):
        large = [each for each in grown if each.sort == sort and each.steps >= ENOUGH]
        for what, costs in (("time", [each.step_ms for each in large]), ("bytes", [each.step_bytes for each in large])):
            ratio = growth(costs)
            met = "met" if ratio <= TARGET else "missed"
            lines.append(
                f"{sort}, {what} a step from {ENOUGH} steps on: beside smaller runs {ratio:.2f} at most (target {TARGET}: {met})"
            )
    return lines
