"""Further formats of configurations, registered by entry points of the group `cantata.formats`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from cantata.config.documents import Document
from cantata.errors import Fault
from cantata.flows.definitions import Definitions


@dataclass(frozen=True)
class Configuration:
    """Definitions, and their locations in the files that they were read from."""

    definitions: Definitions
    locate: Callable[[Sequence[Fault]], Iterable[Fault]] = list
    """Faults of planning in chains → the same faults with their locations in the files."""
    description: str = ""
    """The format, and the parts of the files that are ignored, for people."""
    is_native: bool = False
    """It is in the native format."""
    faults: Sequence[Fault] = ()
    """Warnings: what the files say that has no effect here, or another one; and the faults of chains that are refused when called."""


class Format(Protocol):
    """A format of configurations."""

    @property
    def files(self) -> Sequence[str]:
        """Return the names by which its files are found in a folder."""

    def detects(self, path: Path, document: Document | None) -> bool:
        """Return whether a file, or a folder, is of this format. `document` is the file's, or None: the folder has no `config.yml`."""

    def load(
        self, path: Path, document: Document | None, *, read: Callable[[Path], Document], environment: Mapping[str, str]
    ) -> Configuration:
        """Read a configuration. Raises ConfigError with every fault."""


@cache
def formats() -> tuple[Format, ...]:
    """Return the installed formats, in the order of their names: the first that detects a configuration reads it."""
    return tuple(each.load() for each in sorted(entry_points(group="cantata.formats"), key=lambda each: each.name))
