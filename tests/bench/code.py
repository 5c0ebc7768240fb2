"""Times workflows in Python beside our own chains of the same steps, in one stack."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cantata.client.client import Client
from cantata.flows.definitions import Definitions, PythonWorkflow, Tool
from tests.bench.measure import HERE, PATIENCE_S, SLOW_MS, WARM_UP_S, Samples, run_once
from tests.bench.shapes import shapes

SHAPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "row of 10": ("row", {"steps": 10}),
    "1 → 100 → 1": ("fan", {"width": 100}),
    "50 rows of 10 at once": ("row", {"steps": 10}),
}
"""The shape of a chain → the workflow that does the same, and its input."""
TARGET_RATIO = 1.5
LONG = 1000  # awaits in a row


@dataclass
class WorkflowTimes:
    """What a shape took as a workflow, and as a chain."""

    shape: str
    code: Samples = field(default_factory=Samples)
    chain: Samples = field(default_factory=Samples)

    @property
    def ratio(self) -> float:
        """The workflow's time by the chain's."""
        return self.code.median_ms / self.chain.median_ms


@dataclass
class CodeFigures:
    """All that is measured."""

    shapes: list[WorkflowTimes]
    long_ms: float
    """A row of `LONG` awaits."""
    parked_bytes: int
    """What a run that waits for a person takes in Redis."""


def definitions() -> Definitions:
    """What the runs name."""
    own = {name: PythonWorkflow(function=f"workflow_code:{name}") for name in ("row", "fan", "parked", "recovering")}
    return Definitions(folder=str(HERE), tools={"noop": Tool(function="bench_tools:noop")}, workflows=own)


def measure_code(client: Client) -> CodeFigures:
    """Measure, in turns with the chains."""
    client = client.with_definitions(definitions())
    measured = [_measure(client, shape) for shape in shapes(quick=True) if shape.name in SHAPES]
    long_ms = _timed(lambda: client.submit_workflow("row", {"steps": LONG}).result(PATIENCE_S).raise_for_status())
    return CodeFigures(measured, long_ms, parked_bytes(client))


def _measure(client: Client, shape: Any) -> WorkflowTimes:
    found = WorkflowTimes(shape.name)
    name, given = SHAPES[shape.name]

    def code() -> None:
        runs = [client.submit_workflow(name, given) for _ in range(shape.at_once)]
        for run in runs:
            run.result(PATIENCE_S).raise_for_status()

    warm_at = time.monotonic() + WARM_UP_S
    while len(found.chain.ms) < shape.repeats:
        code_ms, (chain_ms, _) = _timed(code), run_once(client, shape, "noop")
        if time.monotonic() > warm_at or code_ms > SLOW_MS:
            found.code.ms.append(code_ms)
            found.chain.ms.append(chain_ms)
    sys.stderr.write(f"{shape.name}: workflow {found.code.median_ms:.1f} ms, chain {found.chain.median_ms:.1f} ms\n")
    return found


def _timed(act: Callable[[], object]) -> float:
    since = time.perf_counter()
    act()
    return (time.perf_counter() - since) * 1000


def parked_bytes(client: Client) -> int:
    run = client.submit_workflow("parked", {})
    while not any(step.state == "waiting_signal" for step in run.record().steps.values()):
        time.sleep(0.01)
    return sum(
        client.redis.memory_usage(key, samples=0) or 0 for key in client.redis.scan_iter(f"*{run.run_id}*", count=1000)
    )
