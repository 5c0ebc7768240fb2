"""The folder of the project that a process works on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

STACK_FOLDER, CONFIG_FILE = Path(".cantata"), Path("configs/default.yaml")


def project_folder() -> Path:
    """Return the working directory; in a sub-folder of a project whose stack `submit up` keeps, the folder of that project.

    The search goes up as git's does, and ends below the home folder. A working directory with a stack or a configuration is a project.
    """
    here = Path.cwd()
    if not any((here / name).exists() for name in (STACK_FOLDER, CONFIG_FILE)):
        for folder in here.parents:
            if folder == Path(os.path.expanduser("~")):  # Path.home() fails where a user has none
                break
            if _keeps_stack(folder / STACK_FOLDER / "stack.json"):
                return folder
    return here


def stack_folder() -> Path:
    """Return the folder of the stack here: CANTATA_HOME, else `.cantata` in the folder of the project."""
    return Path(os.environ.get("CANTATA_HOME") or project_folder() / STACK_FOLDER)


def stack_configuration() -> Path | None:
    """Return the configuration with which the stack that `submit up` keeps here was started, if one was named and the stack runs."""
    record = _record_of(stack_folder() / "stack.json")
    try:
        os.kill(record["supervisor"]["identity"]["pid"], 0)
    except (OSError, LookupError, TypeError):
        return None
    return Path(record["config"]) if record.get("kept") and record.get("config") else None


def _keeps_stack(record: Path) -> bool:
    """Return whether this is the record of a stack that outlives commands."""
    return _record_of(record).get("kept") is True


def _record_of(path: Path) -> dict[str, Any]:
    """Return the record of a stack of this user; empty without one."""
    try:
        found = json.loads(path.read_text("utf-8")) if path.stat().st_uid == os.getuid() else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
