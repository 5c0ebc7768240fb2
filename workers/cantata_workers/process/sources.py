"""The files of user code: those of a module, and the modules that a text imports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cantata.config.user_code.function_names import LIBRARIES
from cantata.operation.packages import OURS

INSTALLED = {"site-packages", "dist-packages"}  # of a virtual environment that lies in a folder of the user's
MAX_FILES = 2000  # of one module and all that it imports

_SKIPPED = INSTALLED | {"__pycache__", "node_modules"}
_IMPORT = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))"
    rb"|(?:import_module|__import__)\(\s*[\"'](\w+)",
    re.MULTILINE,
)


def is_user_code(file: Path) -> bool:
    """Return whether a file belongs neither to Python nor to an installed package."""
    return not any(file.is_relative_to(library) for library in LIBRARIES) and not INSTALLED & set(file.parts)


def user_folders() -> list[str]:
    """Return the folders of sys.path that hold the user's own modules, such as that of an editable install."""
    return [folder for folder in sys.path if folder and is_user_code(Path(folder)) and Path(folder).is_dir()]


def folder_of(module: str, folders: Iterable[str]) -> str | None:
    """Return the first folder that has a top-level module, as a file or as a package; None if none has."""
    listed = list(folders)
    found = (
        folder
        for folder in listed
        if Path(folder, f"{module}.py").is_file() or Path(folder, module, "__init__.py").is_file()
    )
    return next(found, None) or next((folder for folder in listed if Path(folder, module).is_dir()), None)


def files_of(folder: str, module: str) -> list[Path]:
    """Return the files of a top-level module: its own, or all of its package. Without a name: all files of the folder."""
    package, file = Path(folder, module), Path(folder, f"{module}.py")
    if module and file.is_file() and not (package / "__init__.py").is_file():
        return [file]
    return sorted(_tree(package))


def imported_by(text: bytes) -> set[str]:
    """Return the top-level modules that a text imports anywhere, found by the form of its lines: it need not be valid Python."""
    names: set[str] = set()
    for origin, listed, called in _IMPORT.findall(text):
        names.update(
            part.strip().partition(b".")[0].split(b" ")[0].decode() for part in (origin or called or listed).split(b",")
        )
    return {name for name in names if name and name not in OURS}


def _tree(folder: Path) -> Iterator[Path]:
    count = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            each
            for each in folders
            if each[0] != "." and each not in _SKIPPED and not Path(parent, each, "pyvenv.cfg").exists()
        )
        for file in sorted(files):
            if file.endswith(".py"):
                count += 1
                if count > MAX_FILES:
                    return
                yield Path(parent, file)
