"""From a Python function to the name that workers find it by."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError

_INSTALLED = tuple(Path(sysconfig.get_paths()[place]).resolve() for place in ("purelib", "platlib", "stdlib"))


def name_of(function: Callable[..., Any]) -> tuple[str, Path | None]:
    """`module:name` of a function, and the folder that its module is imported from; None for what is installed.

    Raises ConfigError for what a worker could not find: a lambda, a function inside another, one of an interactive session.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    remedy = "workers import it by name: define it with `def` at the top level of a module"
    if name == "<lambda>":
        raise ConfigError(f"a lambda cannot be a step: {remedy}", source="function")
    if not callable(function) or "." in name:
        raise ConfigError(f"{name!r} is not at the top level of its module: {remedy}", source="function")
    module, file = _module_of(function, name, remedy)
    return f"{module}:{name}", _folder_of(module, file)


def _module_of(function: Callable[..., Any], name: str, remedy: str) -> tuple[str, Path | None]:
    module = function.__module__
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if module != "__main__":
        return module, Path(file).resolve() if file else None
    if file is None:
        raise ConfigError(f"{name!r} was defined in an interactive session: {remedy}", source="function")
    spec = getattr(loaded, "__spec__", None)
    return (spec.name if spec else Path(file).stem), Path(file).resolve()


def _folder_of(module: str, file: Path | None) -> Path | None:
    if file is None or any(file.is_relative_to(place) for place in _INSTALLED):
        return None
    return file.parents[module.count(".") + (1 if file.stem == "__init__" else 0)]
