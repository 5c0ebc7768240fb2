"""Search and parsing of modules in a folder without importing them."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import sys
import warnings
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path


def spec_of(module: str, folder: Path | None) -> ModuleSpec | None:
    """Return the spec by which Python would import a module. Unlike Python's `find_spec`, it does not import the parent packages."""
    top, *rest = module.split(".")
    here = _find(top, [str(folder)]) if folder else None
    try:
        if module in sys.modules and not (here and here.origin):
            return sys.modules[module].__spec__
        spec = here if here and here.origin else importlib.util.find_spec(top) or here  # a folder without __init__.py comes last
    except (ImportError, ValueError):
        return None
    for part in rest:
        spec = _find(f"{spec.name}.{part}", spec.submodule_search_locations or ()) if spec else None
    return spec


def _find(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    finders = filter(None, map(pkgutil.get_importer, folders))
    specs = [spec for finder in finders if (spec := finder.find_spec(name))]
    return next((spec for spec in specs if spec.origin), specs[0] if specs else None)


@lru_cache(maxsize=8)
def tree_of(file: Path, mtime_ns: int) -> ast.Module:
    """Return the syntax tree of a module; cached, since a configuration often names many functions of one module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the style of other people's code
        return ast.parse(file.read_bytes(), str(file))
