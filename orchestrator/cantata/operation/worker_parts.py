"""Parts of workers that processes of the orchestrator use: the imports before a fork, checks of models.

Each is an entry point of the group `cantata.operation.worker_parts`, since nothing here imports workers.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def worker_part(name: str) -> Any:
    """Return a module of the workers by the name of its entry point."""
    (found,) = entry_points(group="cantata.operation.worker_parts", name=name)
    return found.load()
