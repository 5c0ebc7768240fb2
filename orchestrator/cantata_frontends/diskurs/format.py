"""Diskurs folders as a format of configurations. Every worker asks for it, so what reads such a folder is imported when there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.formats import Configuration
from cantata.config.source_map import value_at

files = ()


def detects(path: Path, document: Document | None) -> bool:
    """Return whether a document is a Diskurs configuration: it has a `firstContact`."""
    return document is not None and any(
        value_at(document.data, key) is not None for key in ("firstContact", "first_contact")
    )


def load(
    path: Path, document: Document | None, *, read: Callable[[Path], Document], environment: Mapping[str, str]
) -> Configuration:
    """Read a `config.yml` with the folders of its agents. Raises ConfigError with every fault."""
    from cantata_frontends.diskurs.configuration import read_folder  # noqa: PLC0415  # takes 2 MB

    return read_folder(path, document, read=read, environment=environment)
