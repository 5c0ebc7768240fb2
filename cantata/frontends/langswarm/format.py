"""LangSwarm's files as a format of configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.formats import Configuration
from cantata.frontends.langswarm.compile_files import load as compile_files
from cantata.frontends.langswarm.files import files_in, is_langswarm
from cantata.frontends.langswarm.vocabulary import FILES

files = FILES


def detects(path: Path, document: Document | None) -> bool:
    """Return whether a folder has LangSwarm's files, or a file is one of them."""
    return bool(files_in(path)) if document is None else not path.is_dir() and is_langswarm(document.data)


def load(path: Path, document: Document | None, *, read: Callable[[Path], Document], environment: Mapping[str, str]) -> Configuration:
    """Read a folder, or a file with those beside it. Raises ConfigError with every fault."""
    folder = path if document is None else path.parent
    beside = files_in(folder)
    paths = beside if document is None or path in beside else [path]
    loaded = compile_files(paths, folder=folder.absolute(), read=read, environment=environment)
    ignored = f"; of no effect here: {', '.join(loaded.ignored_blocks)}" if loaded.ignored_blocks else ""
    return Configuration(loaded.definitions, loaded.in_files, f"of LangSwarm's files{ignored}")
