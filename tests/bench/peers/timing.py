"""How a peer times its shapes and tells them: one line of JSON a shape. Needs nothing but Python."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping

REPEATS = 7
WARM_UP_S = 3.0
SLOW_MS = 60_000.0  # what takes longer is measured once


def noop(*_: object) -> int:
    """The work of every step: none."""
    return 1


def tell(shapes: Mapping[str, Callable[[], object]]) -> None:
    """Time the shapes that the bench asks for (PEER_SHAPES, a JSON list) and print their samples."""
    wanted = json.loads(os.environ.get("PEER_SHAPES", "null"))
    for shape, once in shapes.items():
        if wanted is None or shape in wanted:
            sys.stdout.write(json.dumps({"shape": shape, "samples_ms": _samples_ms(once)}) + "\n")
            sys.stdout.flush()


def _samples_ms(once: Callable[[], object]) -> list[float]:
    samples: list[float] = []
    warm_at = time.monotonic() + WARM_UP_S
    while len(samples) < REPEATS:
        is_warm = time.monotonic() > warm_at
        since = time.perf_counter()
        once()
        took_ms = (time.perf_counter() - since) * 1000
        if is_warm or took_ms > SLOW_MS:
            samples.append(took_ms)
        if took_ms > SLOW_MS:
            break
    return samples
