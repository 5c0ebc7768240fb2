"""The names by which workers import Python functions."""

from __future__ import annotations

import inspect
import json
import os
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cantata.config.user_code.function_source import fault_of
from cantata.errors import ConfigError

IN_WORKER = "CANTATA_WORKER"
"""Set in the environment of workers, which import the modules of functions: the import of such a module must not start runs."""

_GUARD = """a worker that imports this module for one of its functions must not run chains or use memory. \
Put the code that does so into a function, which only the script itself calls:

def main():
    ...  # the code that runs chains
if __name__ == "__main__":
    main()

A chain within a chain is one of its instructions. A function that needs memory takes a `context: ToolContext`, and uses context.memory."""

_REMEDY = "workers import functions by name: define it with `def` at the top level of a module"
_VALUES = f"{_REMEDY}; values for a step or a chainbreaker go into functools.partial(function, value)"
_PLACES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
LIBRARIES = tuple(Path(place).resolve() for place in _PLACES)
_FIND = (
    "import importlib.util, json, sys; "
    "print(json.dumps([s.origin if (s := importlib.util.find_spec(n)) else None for n in sys.argv[1:]]))"
)


def refuse_in_worker(source: str) -> None:
    """Raise ConfigError in a worker, whose import of a script repeats what the script does at its top level."""
    if os.environ.get(IN_WORKER):
        raise ConfigError(_GUARD, source=source)


def name_of(function: Callable[..., Any]) -> tuple[str, Path | None]:
    """Return `module:name` of a function, and the folder that its module is imported from; None for installed modules.

    The module of a function in the running script is named by the script's file. Raises ConfigError for functions that no worker could
    find: lambdas, nested functions, methods, callable objects, definitions of an interactive session.
    """
    name = getattr(function, "__qualname__", None)
    if isinstance(function, partial):
        raise _refused(
            "only steps and chainbreakers may be a functools.partial", f"{_REMEDY} that calls it with the values"
        )
    if name is None:
        raise _refused(f"{function!r} is not a function", f"{_REMEDY} that calls it")
    if name.endswith("<lambda>"):
        raise _refused("a lambda has no name", _VALUES)
    if "<locals>" in name:
        raise _refused(f"{name.rpartition('.')[2]!r} is defined inside {name.partition('.')[0]!r}", _VALUES)
    if "." in name:
        raise _refused(f"{name!r} is a method", f"{_REMEDY} that calls it")
    module, file = _script_of(function, name) if function.__module__ == "__main__" else _module_of(function, name)
    folder = _folder_of(module, file)
    if fault := fault_of(f"{module}:{name}", folder=folder):
        raise _refused(fault, _REMEDY)
    return f"{module}:{name}", folder


def shared_folder(names: Mapping[str, Path | None]) -> Path | None:
    """Return the folder that workers need to import all these functions; None if they need none. Raises ConfigError.

    Workers import from one folder. Of several, those are ignored that an interpreter finds by itself, as with an editable install.
    """
    folders = set(filter(None, names.values()))
    if len(folders) > 1:
        roots = {name.partition(":")[0].partition(".")[0]: folder for name, folder in names.items() if folder}
        folders -= _found_by_default(roots)
    if len(folders) > 1:
        listed = ", ".join(sorted(map(str, folders)))
        raise _refused(
            f"the functions lie in several folders: {listed}",
            "workers import from one folder: put them in one, or install the others",
        )
    return next(iter(folders), None)


def _script_of(function: Callable[..., Any], name: str) -> tuple[str, Path]:
    """Return the module name and file of the running script. Raises ConfigError if workers cannot import it."""
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    file = Path(namespace.get("__file__") or "")
    if not file.is_file() or namespace.get(name) is not function:
        raise _refused(
            f"{name!r} was defined in an interactive session, which no worker can import",
            "put it in a file, such as steps.py (in a notebook: a cell that begins with %%writefile steps.py), and import it from there",
        )
    spec = namespace.get("__spec__")  # of `python -m package.module`
    module = spec.name if spec else file.resolve().stem
    if not re.fullmatch(r"[\w.]+", module) or (spec is None and "." in module):
        raise _refused(
            f"{file.name!r} is no name that can be imported", "call the script with letters, digits and underscores"
        )
    return module, file.resolve()


def _module_of(function: Callable[..., Any], name: str) -> tuple[str, Path | None]:
    module = sys.modules.get(function.__module__)
    if getattr(module, name, None) is not function:
        raise _refused(f"{function.__module__}.{name} is not this function", _REMEDY)
    file = getattr(module, "__file__", None)
    return function.__module__, Path(file).resolve() if file else None


def _folder_of(module: str, file: Path | None) -> Path | None:
    if file is None or any(file.is_relative_to(place) for place in LIBRARIES):
        return None
    return file.parents[module.count(".") + (1 if file.stem == "__init__" else 0)]


def _found_by_default(roots: Mapping[str, Path]) -> set[Path]:
    """Return the folders whose modules a new interpreter finds by itself."""
    found = subprocess.run(
        [sys.executable, "-P", "-c", _FIND, *roots], capture_output=True, text=True, cwd="/", check=True
    )
    origins: Iterable[str | None] = json.loads(found.stdout)
    lost = {
        folder
        for folder, origin in zip(roots.values(), origins, strict=True)
        if not origin or not Path(origin).is_relative_to(folder)
    }
    return set(roots.values()) - lost


def _refused(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"{what}; {remedy}", source="function")
