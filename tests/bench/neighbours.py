"""Times runs whose steps are tasks of the user's own Celery application beside the same canvases of that application."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cantata.client.client import Client
from cantata.flows.definitions import Definitions, Tool
from cantata.operation.embedded.home import Home
from cantata.operation.embedded.valkey import server_url
from tests.bench.measure import PATIENCE_S, PROCESSES, SLOW_MS, WARM_UP_S, Samples, database, plain_ms, run_once
from tests.bench.shapes import Shape, shapes

SHAPES = ("row of 10", "1 → 100 → 1", "50 rows of 10 at once")
APP = "tests.bench.their_app"
REPEATS = {"row of 10": 150}  # other work on the machine takes milliseconds of it
TARGET_RATIO = 1.5  # of the row


@dataclass
class Beside:
    """What a shape took through Cantata, and by the application's own canvas."""

    shape: Shape
    ours: Samples = field(default_factory=Samples)
    theirs: Samples = field(default_factory=Samples)

    @property
    def ratio(self) -> float:
        """Ours by theirs."""
        return self.ours.median_ms / self.theirs.median_ms


def measure_neighbours() -> list[Beside]:
    """Samples of each shape, ours and theirs in turns."""
    wanted = [shape for shape in shapes(quick=True) if shape.name in SHAPES]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(folder)
        os.environ |= {"THEIR_REDIS": database(server_url(home.make_socket()), 1), "CANTATA_APP": f"{APP}:app"}
        try:
            definitions = Definitions(tools={"noop": Tool(task="noop")})
            with Client.embedded(folder, config=definitions, tools=1) as client, _their_worker() as app:
                return [_measure(client, app, shape) for shape in wanted]
        finally:
            del os.environ["CANTATA_APP"]


@contextmanager
def _their_worker() -> Iterator[Any]:
    """Run a worker of the application, started as its authors would; yield the application."""
    from tests.bench import their_app  # noqa: PLC0415  # it reads its address when it is imported

    command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-c", str(PROCESSES), "-l", "ERROR"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        their_app.noop.delay().get(timeout=PATIENCE_S)
        yield their_app.app
    finally:
        worker.terminate()
        worker.wait(15)


def _measure(client: Client, app: Any, shape: Shape) -> Beside:
    beside = Beside(shape)
    warm_at = time.monotonic() + 2 * WARM_UP_S
    while len(beside.theirs.ms) < REPEATS.get(shape.name, shape.repeats):
        ours_ms, _ = run_once(client, shape, "noop")
        theirs_ms = plain_ms(app, shape)
        if time.monotonic() > warm_at or ours_ms > SLOW_MS:
            beside.ours.ms.append(ours_ms)
            beside.theirs.ms.append(theirs_ms)
    sys.stderr.write(f"{shape.name}: ours {beside.ours.median_ms:.1f} ms, theirs {beside.theirs.median_ms:.1f} ms\n")
    return beside
