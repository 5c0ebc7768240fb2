"""Search, parsing and import of modules in a folder, and clashes of their names with Cantata's own packages."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cantata.config.file_versions import note
from cantata.config.user_code.built_ins import place_of
from cantata.errors import ImportFailedError
from cantata.operation import exits
from cantata.operation.packages import HERE, OURS


def spec_of(module: str, folder: Path | None) -> ModuleSpec | None:
    """Return the spec by which Python would import a module. Unlike Python's `find_spec`, it does not import the parent packages."""
    top, *rest = module.split(".")
    here = _find(top, [str(folder)]) if folder else None
    try:
        if module in sys.modules and not (here and here.origin):
            return sys.modules[module].__spec__
        for each in sys.path:
            note(each)
        spec = (
            here if here and here.origin else importlib.util.find_spec(top) or here
        )  # a folder without __init__.py comes last
    except (ImportError, ValueError):
        return None
    for part in rest:
        spec = _find(f"{spec.name}.{part}", spec.submodule_search_locations or ()) if spec else None
    return spec


def _find(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    folders = list(folders)
    for folder in folders:
        note(folder)
    finders = filter(None, map(pkgutil.get_importer, folders))
    specs = [spec for finder in finders if (spec := finder.find_spec(name))]
    return next((spec for spec in specs if spec.origin), specs[0] if specs else None)


@lru_cache(maxsize=8)
def tree_of(file: Path, mtime_ns: int) -> ast.Module:
    """Return the syntax tree of a module; cached, since a configuration often names many functions of one module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the style of other people's code
        return ast.parse(file.read_bytes(), str(file))


def load_function(
    name: str, folder: str | None, import_module: Callable[[str], ModuleType] = importlib.import_module
) -> Callable[..., Any]:
    """Import a module, and return its function `module:name`. Raises ImportFailedError."""
    module_name, _, attribute = place_of(name).partition(":")
    top = module_name.partition(".")[0]
    if clash := clash_of(module_name, Path(folder) if folder else None):
        raise ImportFailedError(f"module {module_name!r} cannot be imported: {clash}", top)
    try:
        function: Callable[..., Any] | None = getattr(import_module(module_name), attribute, None)
    except BaseException as error:  # whatever a user's module raises while it is imported
        if exits.is_of_signal(error):
            raise
        raise ImportFailedError(f"module {module_name!r} cannot be imported: {import_fault(error)}", top) from error
    if not callable(function):
        raise ImportFailedError(f"module {module_name!r} has no function {attribute!r}", top, lacks_name=True)
    return function


def import_fault(error: BaseException) -> str:
    """Return an error that an import raised, with the file and line of the module that raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.name == "<module>" and frame.filename[0] != "<"
    ]
    place = (
        f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        if frames and not isinstance(error, SyntaxError)
        else ""
    )
    return f"{type(error).__name__}: {error}{place}"


# --- clashes of names -----------------------------------------------------------------------------------------------


def clash_of(module: str, folder: Path | None) -> str | None:
    """Return why a module of the folder cannot be imported: it, or one that it imports, has the name of our package. None if it can."""
    if not folder:
        return None
    note(folder)
    taken = {name for name in OURS if _is_there(folder, name)}
    if not taken:
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
        tree = tree_of(file, note(file))
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
