"""Finds the files of user code: those of a module, and of the modules that its text imports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cantata.config.user_code.function_names import LIBRARIES
from cantata.packages import OURS

INSTALLED = {"site-packages", "dist-packages"}  # of a virtual environment that lies in a folder of the user's
MAX_FILES = 2000  # of one module and all that it imports

_SKIPPED = INSTALLED | {"__pycache__", "node_modules"}
_IMPORT = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))"
    rb"|(?:import_module|__import__)\(\s*[\"'](\w+)",
    re.MULTILINE,
)


def is_users(file: Path) -> bool:
    """Whether a file is neither of Python nor of what is installed."""
    return not any(file.is_relative_to(place) for place in LIBRARIES) and not INSTALLED & set(file.parts)


def folders_of_user() -> list[str]:
    """The folders that Python imports the user's own modules from, such as that of an editable install."""
    return [folder for folder in sys.path if folder and is_users(Path(folder)) and Path(folder).is_dir()]


def folder_of(module: str, folders: Iterable[str]) -> str | None:
    """The first folder that has a top-level module, as a file or as a package; None if none has."""
    places = list(folders)
    found = (place for place in places if Path(place, f"{module}.py").is_file() or Path(place, module, "__init__.py").is_file())
    return next(found, None) or next((place for place in places if Path(place, module).is_dir()), None)


def files_of(folder: str, module: str) -> list[Path]:
    """The files of a top-level module: its own, or all of its package. Without a name: all of the folder."""
    package, file = Path(folder, module), Path(folder, f"{module}.py")
    if module and file.is_file() and not (package / "__init__.py").is_file():
        return [file]
    return sorted(_tree(package))


def imported_by(text: bytes) -> set[str]:
    """The top-level modules that a text imports anywhere, by the form of its lines: it may be no valid Python."""
    names: set[str] = set()
    for origin, listed, called in _IMPORT.findall(text):
        names.update(part.strip().partition(b".")[0].split(b" ")[0].decode() for part in (origin or called or listed).split(b","))
    return {name for name in names if name and name not in OURS}


def _tree(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            each for each in folders if each[0] != "." and each not in _SKIPPED and not Path(place, each, "pyvenv.cfg").exists()
        )
        for file in sorted(files):
            if file.endswith(".py"):
                count += 1
                if count > MAX_FILES:
                    return
                yield Path(place, file)
