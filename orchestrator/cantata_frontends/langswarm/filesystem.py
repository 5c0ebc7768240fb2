"""LangSwarm's tool for files: its methods, for paths that the configuration allows.

A path is allowed by the longest of the `grants` that it lies in, unless a name below that begins with '.'. A relative path lies in the
configuration's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from cantata.errors import StepError
from cantata.flows.definitions import Tool
from cantata.values import JsonValue
from cantata_frontends.langswarm.config_part import ConfigPart
from cantata_frontends.langswarm.symbol_table import SymbolTable
from cantata_frontends.langswarm.vocabulary import TOOL

_LEVELS = ("forbidden", "read_only", "read_write")
_PATHS = ("allowed_paths", "root_path", "base_directory")
_GRANTS = (*_PATHS, "permissions")
_KEYS = frozenset(
    {"id", "name", "identifier", "type", "mcp_server", "description", "brief", "instruction", "local_mode", "pattern"}
) | {
    "settings",
    "server_config",
    "methods",
    "read_only",
    *_GRANTS,
}
_METHODS = (
    "get_allowed_paths", "list_directory", "read_file", "get_file_info", "write_file", "update_file", "delete_file", "create_directory",
)  # fmt: skip
_CLOUD = "gs://"
RUNTIME = "cantata.frontends.langswarm.filesystem"  # as runs store it, see built_ins.py

Grants = dict[str, str]
"""Path → forbidden, read_only or read_write."""


def read_filesystem(name: str, part: ConfigPart, symbols: SymbolTable, resolved: Callable[[ConfigPart], str]) -> None:
    """Read a tool for files into the symbol table; `resolved` returns a text of the file with its variable replaced."""
    settings = part.at("settings")
    part.check_keys(_KEYS, TOOL, "the tool for files")
    settings.check_keys((*_GRANTS, "read_only"))
    part.at("server_config").check_keys(("command", "args", "timeout"))
    _warn_of_arguments(part.at("server_config", "args"))
    folder = str(symbols.folder or Path())
    grants: Grants = dict(_grants(part, resolved))
    if not any(key in place.value for place in (part, settings) if isinstance(place.value, dict) for key in _GRANTS):
        grants = {folder: "read_only"}
    methods = [method for method in _METHODS if method in _chosen(part)] if part.has("methods") else _METHODS
    for method in methods:
        values: dict[str, JsonValue] = {"folder": folder, "grants": dict(grants)}
        symbols.tools[f"{name}.{method}"] = Tool(function=f"{RUNTIME}:{method}", values=values)
    symbols.methods[name] = [f"{name}.{method}" for method in methods]


def _chosen(part: ConfigPart) -> list[str]:
    """Return the methods that the configuration names."""
    found = []
    for item in part.at("methods").items():
        named = item.at("name") if item.has("name") else item
        names = [*named.value] if isinstance(named.value, dict) else [named.text()]
        found += [name for name in names if name and named.is_known(name, _METHODS, "method")]
    return found


def _warn_of_arguments(part: ConfigPart) -> None:
    """Warn of the arguments of the program, which is not started."""
    given = [str(item.value) for item in part.items()]
    own = next((number for number, text in enumerate(given, 1) if text.startswith("langswarm")), 0)
    if given[own:]:
        part.warn(f"{' '.join(given[own:])!r} has no effect: write the paths in 'allowed_paths'")


def _grants(part: ConfigPart, resolved: Callable[[ConfigPart], str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of `allowed_paths` and `permissions`, each with its level."""
    settings = part.at("settings")
    level = "read_only" if part.at("read_only").boolean() or settings.at("read_only").boolean() else "read_write"
    for item in (item for place in (part, settings) for key in _PATHS for item in place.at(key).items()):
        faults = len(item.faults)
        path = resolved(item)
        if len(item.faults) == faults and _is_local(path, item):
            yield path, level
    for path, item in (entry for place in (part, settings) for entry in place.at("permissions").entries()):
        if _is_local(path, item) and item.is_known(level := resolved(item), _LEVELS, "permission"):
            yield path, level


def _is_local(path: str, part: ConfigPart) -> bool:
    """Return whether a path is one of the workers' machines; warn if it is elsewhere, and record a fault if it is empty."""
    if not path.strip():
        part.fault("a path is empty; '.' is the configuration's folder")
    elif path.startswith(_CLOUD):
        part.warn("no effect: only files of the workers' machines are read and written")
    return bool(path.strip()) and not path.startswith(_CLOUD)


# --- methods, which workers run ------------------------------------------------------------------------------------------


def get_allowed_paths(*, folder: str, grants: Grants) -> dict[str, list[str]]:
    """Return the paths that may be read, or read and written, and those that are forbidden. Relative paths lie in `folder`."""
    return {
        "folder": [folder],
        **{level: [path for path, given in grants.items() if given == level] for level in _LEVELS},
    }


def list_directory(path: str = ".", *, folder: str, grants: Grants) -> list[str]:
    """Return the names in a folder; those of folders end with '/'."""
    return sorted(f"{each.name}/" if each.is_dir() else each.name for each in _allowed(path, folder, grants).iterdir())


def read_file(path: str, *, folder: str, grants: Grants) -> str:
    """Return the text of a file."""
    with _allowed(path, folder, grants).open(encoding="utf-8", newline="") as file:
        return file.read()


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
    file.write_text(content, "utf-8", newline="")
    return f"wrote {path}"


def update_file(
    path: str, content: str, mode: Literal["append", "overwrite"] = "append", *, folder: str, grants: Grants
) -> str:
    """Append a text to a file, or write it in place of what is there."""
    if mode not in ("append", "overwrite"):  # a step's arguments are not validated
        raise StepError(f"the mode is 'append' or 'overwrite', not {mode!r}", code="bad_arguments")
    with _allowed(path, folder, grants, "read_write").open(
        "a" if mode == "append" else "w", encoding="utf-8", newline=""
    ) as file:
        file.write(content)
    return f"wrote {path}"


def delete_file(path: str, *, folder: str, grants: Grants) -> str:
    """Delete a file, a link (not what it leads to), or a folder with nothing in it."""
    given = Path(folder, Path(path).expanduser())
    link = given.parent.resolve() / given.name
    file = (
        _checked(link, path, folder, grants, "read_write")
        if link.is_symlink()
        else _allowed(path, folder, grants, "read_write")
    )
    file.unlink() if file.is_symlink() or not file.is_dir() else file.rmdir()
    return f"deleted {path}"


def create_directory(path: str, *, folder: str, grants: Grants) -> str:
    """Create a folder, and those that it is in."""
    _allowed(path, folder, grants, "read_write").mkdir(parents=True, exist_ok=True)
    return f"created {path}"


def _allowed(path: str, folder: str, grants: Grants, level: str = "read_only") -> Path:
    """Return the place of a path, without links. Raises PermissionError if it may not be read, or written."""
    return _checked(_place(path, folder), path, folder, grants, level)


def _checked(place: Path, path: str, folder: str, grants: Grants, level: str) -> Path:
    if path.startswith(_CLOUD):
        raise PermissionError(
            f"{path!r} is not on the worker's machine, so it may not be read or written; see get_allowed_paths"
        )
    if _LEVELS.index(_level(place, folder, grants)) < _LEVELS.index(level):
        raise PermissionError(
            f"{path!r} may not be {'read' if level == 'read_only' else 'written'}; see get_allowed_paths"
        )
    return place


def _level(file: Path, folder: str, grants: Grants) -> str:
    """Return the level of the longest grant that a path lies in; below it, what begins with '.' is forbidden."""
    places = ((_place(path, folder), level) for path, level in grants.items())
    found = [(len(place.parts), -_LEVELS.index(level)) for place, level in places if file.is_relative_to(place)]
    if not found:
        return "forbidden"
    length, rank = max(found)
    is_hidden = any(part.startswith(".") for part in file.parts[length:])
    return "forbidden" if is_hidden else _LEVELS[-rank]


def _place(path: str, folder: str) -> Path:
    return Path(folder, Path(path).expanduser()).resolve()
