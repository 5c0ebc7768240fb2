"""LangSwarm's tool for files: its methods, for paths that the configuration allows.

A path is allowed by the longest of the `grants` that it lies in. A relative path lies in the configuration's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cantata.frontends.langswarm.config_part import ConfigPart
from cantata.frontends.langswarm.symbol_table import SymbolTable
from cantata.frontends.langswarm.vocabulary import TOOL
from cantata.models.definitions import Tool
from cantata.models.values import JsonValue

_LEVELS = ("forbidden", "read_only", "read_write")
_PATHS = ("allowed_paths", "root_path", "base_directory")
_KEYS = frozenset(TOOL) - {
    "function",
    "metadata",
    "module",
    "command",
    "args",
    "url",
    "mcp_url",
    "env",
    "headers",
    "parameters",
    "timeout",
} | {*_PATHS, "read_only"}
_METHODS = (
    "get_allowed_paths", "list_directory", "read_file", "get_file_info", "write_file", "update_file", "delete_file", "create_directory",
)  # fmt: skip

Grants = dict[str, str]
"""Path → forbidden, read_only or read_write."""


def read_filesystem(name: str, part: ConfigPart, symbols: SymbolTable, resolved: Callable[[ConfigPart], str]) -> None:
    """Read a tool for files into the symbol table; `resolved` returns a text of the file with its variable replaced."""
    part.check_keys(_KEYS)
    part.at("settings").check_keys((*_PATHS, "read_only"))
    part.at("server_config").check_keys(("command", "args", "timeout"))
    folder = str(symbols.folder or Path())
    grants: Grants = dict(_grants(part, resolved)) or {folder: "read_only"}
    for method in _METHODS:
        values: dict[str, JsonValue] = {"folder": folder, "grants": dict(grants)}
        symbols.tools[f"{name}.{method}"] = Tool(function=f"{__name__}:{method}", values=values)
    symbols.methods[name] = [f"{name}.{method}" for method in _METHODS]


def _grants(part: ConfigPart, resolved: Callable[[ConfigPart], str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of `allowed_paths` and `permissions`, each with its level."""
    for place in (part, part.at("settings")):
        level = "read_only" if part.at("read_only").boolean() or part.at("settings").at("read_only").boolean() else "read_write"
        for item in (item for key in _PATHS for item in place.at(key).items()):
            yield resolved(item), level
    for path, item in part.at("permissions").entries():
        level = resolved(item)
        if path.startswith("gs://"):
            item.warn("no effect: only files of the workers' machines are read and written")
        elif item.is_known(level, _LEVELS, "permission"):
            yield path, level


# --- methods, which workers run ------------------------------------------------------------------------------------------


def get_allowed_paths(*, folder: str, grants: Grants) -> dict[str, list[str]]:
    """Return the paths that may be read, or read and written, and those that are forbidden. Relative paths lie in `folder`."""
    return {"folder": [folder], **{level: [path for path, given in grants.items() if given == level] for level in _LEVELS}}


def list_directory(path: str = ".", *, folder: str, grants: Grants) -> list[str]:
    """Return the names in a folder; those of folders end with '/'."""
    return sorted(f"{each.name}/" if each.is_dir() else each.name for each in _allowed(path, folder, grants).iterdir())


def read_file(path: str, *, folder: str, grants: Grants) -> str:
    """Return the text of a file."""
    return _allowed(path, folder, grants).read_text("utf-8")


def get_file_info(path: str, *, folder: str, grants: Grants) -> dict[str, JsonValue]:
    """Return whether a path exists, what it is, its size in bytes, and whether it may be written."""
    file = _allowed(path, folder, grants)
    kind = "directory" if file.is_dir() else "file" if file.exists() else None
    size = file.stat().st_size if kind == "file" else None
    return {"path": str(file), "type": kind, "bytes": size, "permission": _level(file, folder, grants)}


def write_file(path: str, content: str, create_dirs: bool = False, *, folder: str, grants: Grants) -> str:
    """Write a file, in place of one that is there."""
    file = _allowed(path, folder, grants, "read_write")
    if create_dirs:
        file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, "utf-8")
    return f"wrote {path}"


def update_file(path: str, content: str, mode: str = "append", *, folder: str, grants: Grants) -> str:
    """Append a text to a file, or with another `mode` than 'append' write it in place of what is there."""
    file = _allowed(path, folder, grants, "read_write")
    file.write_text(file.read_text("utf-8") + content if mode == "append" and file.exists() else content, "utf-8")
    return f"wrote {path}"


def delete_file(path: str, *, folder: str, grants: Grants) -> str:
    """Delete a file, or a folder with nothing in it."""
    file = _allowed(path, folder, grants, "read_write")
    file.rmdir() if file.is_dir() else file.unlink()
    return f"deleted {path}"


def create_directory(path: str, *, folder: str, grants: Grants) -> str:
    """Create a folder, and those that it is in."""
    _allowed(path, folder, grants, "read_write").mkdir(parents=True, exist_ok=True)
    return f"created {path}"


def _allowed(path: str, folder: str, grants: Grants, level: str = "read_only") -> Path:
    """Return the place of a path, without links. Raises PermissionError if it may not be read, or written."""
    file = _place(path, folder)
    if _LEVELS.index(_level(file, folder, grants)) < _LEVELS.index(level):
        raise PermissionError(f"{path!r} may not be {'read' if level == 'read_only' else 'written'}; see get_allowed_paths")
    return file


def _level(file: Path, folder: str, grants: Grants) -> str:
    places = ((_place(path, folder), level) for path, level in grants.items())
    found = [(len(place.parts), -_LEVELS.index(level)) for place, level in places if file.is_relative_to(place)]
    return _LEVELS[-max(found)[1]] if found else "forbidden"


def _place(path: str, folder: str) -> Path:
    return Path(folder, Path(path).expanduser()).resolve()
