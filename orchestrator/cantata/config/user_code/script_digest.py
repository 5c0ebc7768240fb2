"""Scripts in the files of workflows, identified by the digest of their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from cantata.config.documents import parse
from cantata.config.texts import lies_in
from cantata.values import JsonValue

KEY = "script"


def digest_of(text: str) -> str:
    """Return the digest that a run stores in place of a script."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def name_of(path: Path, folder: Path) -> str:
    """Return a file's name in the configuration's folder."""
    return path.resolve().relative_to(folder.resolve()).as_posix() if lies_in(folder, path) else path.name


def scripts_in(path: Path) -> Mapping[str, str]:
    """Return the scripts of a file, by digest. Raises OSError, UnicodeDecodeError, ConfigError."""
    return {digest_of(text): text for text in _scripts(parse(path.read_text("utf-8"), source=str(path)).data)}


def _scripts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        text = value.get(KEY)
        if isinstance(text, str):
            yield text
        for each in value.values():
            yield from _scripts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _scripts(each)
