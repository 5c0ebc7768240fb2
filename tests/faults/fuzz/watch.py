"""Watches processes while they are fed: that each lives on, and that none grows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.past import Violation
from tests.faults.processes import family, is_alive

GROWTH, GROWTH_MB = 1.25, 40.0
"""After the warm-up a process may grow to so many times its size and so many MB: caches fill, and allocators keep what they had."""
BROKEN = re.compile(r"Traceback|step_crashed|lease_renewal_crashed|sweep_crashed|request_failed")


@dataclass
class Watch:
    """Processes by name, as they were when the watch began."""

    processes: Mapping[str, int]
    logs: Path
    _warm: Mapping[str, float] = field(default_factory=dict)

    def warm(self) -> None:
        """Take the sizes that later ones are compared with."""
        self._warm = self.sizes()

    def sizes(self) -> dict[str, float]:
        """MB by name, of a process with all that it started."""
        return {name: sum(map(_rss_mb, family(pid))) for name, pid in self.processes.items()}

    def violations(self, now: Mapping[str, int]) -> Iterator[Violation]:
        """What is wrong, if these are the processes now."""
        for name, pid in self.processes.items():
            if now.get(name) != pid or not is_alive(pid):
                yield Violation(
                    "", "", f"process {pid} of {name}, which was there at the beginning", str(now.get(name))
                )
        for name, size in self.sizes().items():
            most = self._warm.get(name, size) * GROWTH + GROWTH_MB
            if size > most:
                yield Violation(
                    "",
                    "",
                    f"{name} to hold at most {most:.0f} MB, as it held {self._warm[name]:.0f} MB when warm",
                    f"{size:.0f} MB",
                )
        for path in sorted(self.logs.rglob("*.log")):
            found = [line for line in path.read_text(errors="replace").splitlines() if BROKEN.search(line)]
            if found:
                yield Violation("", "", f"no fault of ours in {path.name}", f"{len(found)}: {found[0][:500]}")

    def told(self) -> str:
        """The sizes when warm and now."""
        now = self.sizes()
        return ", ".join(f"{name} {size:.0f} → {now[name]:.0f} MB" for name, size in self._warm.items())


def _rss_mb(pid: int) -> float:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    return 0.0
