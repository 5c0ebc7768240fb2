"""Clashes of module names: modules of a configuration's folder that are hidden by Cantata's own packages."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from cantata.config.user_code.modules import spec_of, tree_of
from cantata.packages import HERE, OURS


def clash_of(module: str, folder: Path | None) -> str | None:
    """Return why a module of the folder cannot be imported: it, or one that it imports, has the name of our package. None if it can."""
    taken = {name for name in OURS if folder and _is_there(folder, name)}
    if not folder or not taken:
        return None
    todo, seen = [(module, "")], set[str]()
    while todo:
        name, importer = todo.pop()
        root = name.partition(".")[0]
        if root in taken:
            by = f", which {importer!r} imports," if importer else ""
            return f"the folder's own {root!r}{by} is hidden by Cantata's package of that name; rename it"
        if name not in seen:
            seen.add(name)
            todo += [(each, name) for each in _imported(name, folder)]
    return None


def _is_there(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or ((folder / name).is_dir() and (folder / name).resolve() != HERE / name)


def _imported(module: str, folder: Path) -> Iterator[str]:
    """Yield the modules that a module of the folder imports, anywhere in its text."""
    spec = spec_of(module, folder)
    file = Path(spec.origin) if spec and spec.origin else None
    if spec is None or file is None or file.suffix != ".py" or not file.resolve().is_relative_to(folder.resolve()):
        return
    try:
        tree = tree_of(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return  # `fault_of` reports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                source = importlib.util.resolve_name(f"{'.' * node.level}{node.module or ''}", spec.parent or "")
            except ImportError:
                continue
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
