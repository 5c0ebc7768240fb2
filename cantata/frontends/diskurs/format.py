"""Diskurs folders as a format of configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.formats import Configuration
from cantata.frontends.diskurs.folder import is_folder, load_folder

files = ()


def detects(path: Path, document: Document | None) -> bool:
    """Return whether a document is a Diskurs configuration."""
    return document is not None and is_folder(document)


def load(path: Path, document: Document | None, *, read: Callable[[Path], Document], environment: Mapping[str, str]) -> Configuration:
    """Read a `config.yml` with the folders of its agents. Raises ConfigError with every fault."""
    folder = path if path.is_dir() else path.parent
    definitions = load_folder(document or read(path), folder=folder.absolute(), environ=environment, check_template=_included)
    return Configuration(definitions, description="of a Diskurs folder")


def _included(text: str) -> list[str]:
    """Return the templates that a Jinja template includes. Raises ValueError with what is wrong with it."""
    from cantata.planning import templates  # noqa: PLC0415  # only folders with templates need jinja2, which takes long to import

    return templates.check(text)
