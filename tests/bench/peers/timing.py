"""How a peer times its shapes and tells them: one line of JSON a shape. Needs nothing but Python."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

REPEATS = int(os.environ.get("PEER_REPEATS", "7"))
WARM_UP_S = 3.0
SLOW_MS = float(os.environ.get("PEER_SLOW_MS", "60000"))  # what takes longer is measured once
LONG_MS = 10_000.0  # what takes longer needs no warm-up
LONG = 1000  # steps of the long row
PARKED = 500  # runs that wait at once, when their bytes are measured
HANG_S = 120.0  # of a step whose worker is killed meanwhile
PATIENCE_S = 60.0


def noop(*_: object) -> int:
    """The work of every step: none."""
    return 1


def tell(shapes: Mapping[str, Callable[[], object]]) -> None:
    """Time the shapes that the bench asks for (PEER_SHAPES, a JSON list) and print their samples."""
    for shape, once in shapes.items():
        if is_wanted(shape):
            tell_samples(shape, samples_ms(once))


def is_wanted(shape: str) -> bool:
    """Return whether the bench asks for a shape."""
    wanted = json.loads(os.environ.get("PEER_SHAPES", "null"))
    return wanted is None or shape in wanted


def tell_samples(shape: str, samples: list[float]) -> None:
    """Print the samples of a shape: milliseconds, bytes of a parked run, or MB of memory."""
    sys.stdout.write(json.dumps({"shape": shape, "samples_ms": samples}) + "\n")
    sys.stdout.flush()


def samples_ms(once: Callable[[], object], *, repeats: int = REPEATS, slow_ms: float = SLOW_MS) -> list[float]:
    """Time an act, after a warm-up."""
    samples: list[float] = []
    warm_at = time.monotonic() + WARM_UP_S
    while len(samples) < repeats:
        is_warm = time.monotonic() > warm_at
        since = time.perf_counter()
        once()
        took_ms = (time.perf_counter() - since) * 1000
        if is_warm or took_ms > LONG_MS:
            samples.append(took_ms)
            if took_ms > slow_ms:
                break
    return samples


def hang_once(marker: str) -> int:
    """Hang at the first call, whose process is to be killed, and return at the next one; the file `marker` tells them apart."""
    if _is_first(marker):
        time.sleep(HANG_S)
    return 1


async def hang_once_async(marker: str) -> int:
    """Do the same in an event loop."""
    if _is_first(marker):
        await asyncio.sleep(HANG_S)
    return 1


def _is_first(marker: str) -> bool:
    file = Path(marker)
    if file.exists():
        return False
    begun = file.with_suffix(".tmp")
    begun.write_text(str(os.getpid()))
    begun.rename(file)
    return True


def recovery_ms(marker: Path, kill: Callable[[int], object], finish: Callable[[], object]) -> float:
    """Wait for the step that hangs, kill its process, and time from there to the end of the run."""
    wait_until(marker.exists)
    since = time.perf_counter()
    kill(int(marker.read_text()))
    finish()
    return (time.perf_counter() - since) * 1000


def parked_bytes(stored: Callable[[], float], park: Callable[[], object]) -> float:
    """Return what each of `PARKED` waiting runs adds to a store, once that has stopped to grow."""
    before = stored()
    park()
    last, now = before, stored()
    while now != last:
        time.sleep(1.0)
        last, now = now, stored()
    return (now - before) / PARKED


def memory_mb(roots: Iterable[int]) -> float:
    """Return the memory (PSS) of processes and of all that they started, in MB. Linux only."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    more = set(roots)
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in found} - found
    return sum(map(_pss_kb, found)) / 1000


def _pss_kb(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return 0


def in_loop(loop: asyncio.AbstractEventLoop, act: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], object]:
    """Return a function for another thread that runs a coroutine in a loop and waits for it."""
    return lambda: asyncio.run_coroutine_threadsafe(act(), loop).result()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition. Raises TimeoutError."""
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up:
            raise TimeoutError(f"not so after {PATIENCE_S:.0f} s")
        time.sleep(0.005)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
