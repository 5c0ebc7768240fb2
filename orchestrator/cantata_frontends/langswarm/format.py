"""LangSwarm's files as a format of configurations. Every worker asks for it, so what reads them is imported when there are some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.formats import Configuration
from cantata_frontends.langswarm.files import ReadDocument, files_in, is_langswarm
from cantata_frontends.langswarm.vocabulary import FILES

files = FILES


def detects(path: Path, document: Document | None) -> bool:
    """Return whether a folder has LangSwarm's files, or a file is one of them."""
    return bool(files_in(path)) if document is None else not path.is_dir() and is_langswarm(document.data)


def load(path: Path, document: Document | None, *, read: ReadDocument, environment: Mapping[str, str]) -> Configuration:
    """Read a folder, or a file with those beside it. Raises ConfigError with every fault, unless only chains have some."""
    from cantata_frontends.langswarm.configuration import read_files  # noqa: PLC0415  # takes 2 MB

    return read_files(path, document, read=read, environment=environment)
