"""Names of the packages that Cantata installs, which no package of a user may have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from orchestrator.errors import UnavailableError

OURS = ("cantata", "orchestrator", "workers")
HERE = Path(__file__).resolve().parents[1]
"""Where they are installed."""


def check_workers() -> None:
    """Raise UnavailableError if a Python process started from here would take another package for Cantata's workers."""
    spec = importlib.util.find_spec("workers")
    place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    if place and not Path(place).resolve().is_relative_to(HERE / "workers"):
        raise UnavailableError(
            f"the package 'workers' at {place} hides Cantata's own, so no worker can start; rename it, or take its folder from PYTHONPATH"
        )
