"""Search for functions named `module:name` in the text of their modules, without importing these."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cantata.config.file_versions import note
from cantata.config.user_code.built_ins import place_of
from cantata.config.user_code.modules import clash_of, spec_of, tree_of
from cantata.text.suggestions import hint, nearest

_ANYTHING = "*"  # among a module's names: it has names that are not in its text
_MAX_IMPORTS = 5  # that a name is followed through


def fault_of(function: str, *, folder: Path | None) -> str | None:
    """Return why workers will not find `module:name` in `folder` or among installed modules; None if they will.

    The names of modules without source, such as compiled ones, are not checked.
    """
    module, _, name = place_of(function).partition(":")
    if clash := clash_of(module, folder):
        return f"module {module!r} cannot be imported: {clash}"
    spec = spec_of(module, folder)
    if spec is None:
        near = nearest(module, _modules_in(folder)) if folder else None
        return f"module {module!r} is not {f'in {folder} nor ' if folder else ''}installed{hint(near)}"
    if spec.origin is None:
        return f"module {module!r} is a folder without __init__.py, so it has no functions"
    file = Path(spec.origin)
    if file.suffix != ".py":
        return None
    title = "/".join(file.parts[-2:]) if file.stem == "__init__" else file.name
    try:
        names = _names_in(file, note(file))
    except SyntaxError as error:
        return f"module {module!r} cannot be imported: {title} line {error.lineno}: {error.msg}"
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return f"module {module!r} cannot be imported: {title}: {error}"
    if name in names or _ANYTHING in names:
        return None
    return f"function {name!r} is not in {title}{hint(nearest(name, names))}"


@dataclass(frozen=True)
class SourceDefinition:
    """The statement that defines a name, in its module."""

    node: ast.stmt
    file: Path
    tree: ast.Module


def definition_of(function: str, *, folder: Path | None) -> SourceDefinition | None:
    """Return the statement that defines `module:name`, in that module or in one that it imports the name from; None if none is found."""
    module, _, name = place_of(function).partition(":")
    for _ in range(_MAX_IMPORTS):
        spec = spec_of(module, folder)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        file = Path(spec.origin)
        try:
            tree = tree_of(file, note(file))
            node = dict(bindings(tree)).get(name)  # the last one counts
            if not isinstance(node, ast.ImportFrom):
                return SourceDefinition(node, file, tree) if node else None
            module = importlib.util.resolve_name(f"{'.' * node.level}{node.module or ''}", spec.parent or "")
        except (OSError, ValueError, SyntaxError, ImportError, RecursionError, MemoryError):
            return None  # `fault_of` reports it
        name = next(alias.name for alias in node.names if name == (alias.asname or alias.name))
    return None


def bindings(node: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that are bound at the top level, each with its statement: a definition, an assignment or an import."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield child.name, child
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name.partition(".")[0], child) for alias in child.names)
            case ast.Assign():
                yield from ((target.id, child) for target in child.targets if isinstance(target, ast.Name))
            case ast.stmt() | ast.excepthandler():
                yield from bindings(child)


def _modules_in(folder: Path) -> Iterator[str]:
    yield from (file.stem for file in folder.glob("*.py"))
    yield from (file.parent.name for file in folder.glob("*/__init__.py"))


def names_in(file: Path) -> frozenset[str]:
    """Return the names that a file defines; none if it cannot be read, which `fault_of` reports."""
    try:
        return _names_in(file, note(file))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return frozenset()


@lru_cache(maxsize=64)
def _names_in(file: Path, mtime_ns: int) -> frozenset[str]:
    """Return the names that a module's text defines."""
    return frozenset(_names(tree_of(file, mtime_ns)))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names bound at the top level, also under `if`, `try`, `with` and the like, but not inside functions and classes."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name="__getattr__"):
                yield _ANYTHING
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass  # their names are their own
            case _:
                yield from _names(child)
