"""Text files that a configuration refers to."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.file_versions import note
from cantata.config.source_map import find, with_value
from cantata.errors import Fault
from cantata.values import JsonValue

_NAMED = re.compile(r"file:\s*(\S.*)")
_TEXT_FILE = re.compile(r".+\.(md|txt|jinja2)")


def read_texts(document: Document, patterns: Iterable[str], *, folder: Path | None) -> tuple[Document, list[Fault]]:
    """Return the document with the contents of text files in place of their names, and a fault for each file that cannot be read.

    A text is the name of a file only if it is written `file: path`, or if it ends in .md, .txt or .jinja2 and exists in `folder`.
    """
    data, faults = document.data, []
    for pattern in patterns:
        for path, value in find(document.data, pattern):
            file = file_of(value, folder)
            if file is None:
                continue
            note(file)
            try:
                data = with_value(data, path, file.read_text("utf-8-sig"))
            except (OSError, ValueError) as error:
                faults.append(document.fault(path, f"the file {str(file)!r} {_why(error)}"))
    return dataclasses.replace(document, data=data), faults


def file_of(value: JsonValue, folder: Path | None) -> Path | None:
    """Return the file that a text names; None for any other text. The file of `file: path` need not exist."""
    beside = folder or Path()
    if isinstance(value, dict):  # YAML makes one of `file: path` without quotes
        name = value.get("file") if len(value) == 1 else None
        return beside / name if isinstance(name, str) else None
    if not isinstance(value, str):
        return None
    named = _NAMED.fullmatch(value)
    if named:
        return beside / named.group(1)
    if not folder or not _TEXT_FILE.fullmatch(value):
        return None
    note(folder / value)
    return folder / value if os.path.isfile(folder / value) else None


def is_name_of_file(text: str) -> bool:
    """Return whether a text is one word that ends as the name of a text file does."""
    return _TEXT_FILE.fullmatch(text) is not None and not re.search(r"\s", text)


def lies_in(folder: Path, path: Path) -> bool:
    """Return whether a path is inside a folder, after its `..` and symbolic links are resolved."""
    return path.resolve().is_relative_to(folder.resolve())


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"
