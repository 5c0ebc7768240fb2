"""Times workflows in Python beside other engines that run workflows as code: in rounds, with one engine at a time on the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cantata.client.client import Client, EmbeddedClient
from cantata.engine.fleet import registry
from cantata.operation.embedded.stack_plan import worker_command
from tests.bench.code import SHAPES, definitions, parked_bytes
from tests.bench.measure import PATIENCE_S, PROCESSES, stack
from tests.bench.peers.timing import LONG, memory_mb, recovery_ms, samples_ms, wait_until
from tests.bench.rivals import DURABLE, Told, measure_peer

ROUNDS = 3
REPEATS = 5  # in a round
SLOW_MS = 2_000.0  # what takes longer is measured once in a round
LONG_ROW = f"row of {LONG:,}"
FIGURES = (*SHAPES, LONG_ROW, "recovery", "parked", "memory")
ROUND = {"PEER_REPEATS": str(REPEATS), "PEER_SLOW_MS": str(SLOW_MS)}


@dataclass
class Engine:
    """One engine, over all rounds."""

    name: str
    how: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Figure → milliseconds; of `parked`, bytes; of `memory`, MB."""
    missing: str = ""


def measure_comparison() -> list[Engine]:
    """Measure all, Cantata first in the result; each round begins with another engine."""
    measures: list[Callable[[], Told]] = [
        _measure_cantata,
        *(partial(measure_peer, peer, FIGURES, environment=ROUND) for peer in DURABLE),
    ]
    engines = [Engine("Cantata"), *(Engine(peer.name) for peer in DURABLE)]
    for number in range(ROUNDS):
        for at in range(len(engines)):
            index = (at + number) % len(engines)
            _add(engines[index], measures[index]())
    return engines


def _add(engine: Engine, told: Told) -> None:
    engine.how = told.how
    engine.missing = told.missing or engine.missing
    for figure, samples in told.samples_ms.items():
        engine.samples.setdefault(figure, []).extend(samples)


def _measure_cantata() -> Told:
    sys.stderr.write("Cantata …\n")
    with stack(agents=1) as embedded:  # for the memory of a whole system
        client = embedded.with_definitions(definitions())
        shapes = {name: partial(_run, client, name) for name in SHAPES}
        shapes[LONG_ROW] = partial(_submit, client, "row", {"steps": LONG}, 1)
        samples = {name: samples_ms(act, repeats=REPEATS, slow_ms=SLOW_MS) for name, act in shapes.items()}
        samples["memory"] = [memory_mb(process.pid for process in embedded.stack.processes())]
        samples["parked"] = [float(parked_bytes(client))]
        samples["recovery"] = [_recovery_ms(embedded, client)]
    return Told("Cantata", f"{PROCESSES} processes, Valkey with AOF everysec", samples)


def _run(client: Client, shape: str) -> None:
    name, given = SHAPES[shape]
    _submit(client, name, given, 50 if shape.startswith("50") else 1)


def _submit(client: Client, name: str, given: Mapping[str, int], at_once: int) -> None:
    for run in [client.submit_workflow(name, given) for _ in range(at_once)]:
        run.result(PATIENCE_S).raise_for_status()


def _recovery_ms(embedded: EmbeddedClient, client: Client) -> float:
    """Kill one of two workers, with all of its processes, in the middle of a step."""
    with tempfile.TemporaryDirectory() as folder, _second_worker(embedded) as second:
        marker = Path(folder) / "begun"
        first = next(process.pid for process in embedded.stack.processes() if process.name == "tools")
        run = client.submit_workflow("recovering", {"marker": str(marker)})

        def kill(pid: int) -> None:
            family = next(family for family in map(_family, (first, second)) if pid in family)
            for member in family:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)

        return recovery_ms(marker, kill, lambda: run.result(PATIENCE_S).raise_for_status())


@contextmanager
def _second_worker(embedded: EmbeddedClient) -> Iterator[int]:
    """Run another worker for tools, outside the stack."""
    command = worker_command("tools-2", ("tools",), PROCESSES)
    environment = {**os.environ, "REDIS_URL": embedded.stack.url}
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: worker.pid in [known.pid for known in registry.workers(embedded.redis)])
        yield worker.pid
    finally:
        worker.terminate()
        worker.wait(15)


def _family(pid: int) -> Sequence[int]:
    """Return a process and its children."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [pid, *(child for child, parent in pairs if parent == pid)]
