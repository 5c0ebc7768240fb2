"""Functions of ours that steps call, by the names that runs store.

Each package that has such functions names them in a mapping, an entry point of the group `cantata.functions`: name → `module:function`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points


def place_of(function: str) -> str:
    """Return `module:function` of a function: of a built-in by the tables, any other is where its name says."""
    return _places().get(function, function) if function.startswith("cantata.") else function


@cache
def _places() -> Mapping[str, str]:
    return {name: place for each in entry_points(group="cantata.functions") for name, place in each.load().items()}
