"""The folder of the project that a process works on."""

from __future__ import annotations

import json
import os
from pathlib import Path

STACK_FOLDER, CONFIG_FILE = Path(".cantata"), Path("configs/default.yaml")


def project_folder() -> Path:
    """Return the working directory; in a sub-folder of a project whose stack `submit up` keeps, the folder of that project.

    The search goes up as git's does, and ends below the home folder. A working directory with a stack or a configuration is a project.
    """
    here = Path.cwd()
    if not any((here / name).exists() for name in (STACK_FOLDER, CONFIG_FILE)):
        for folder in here.parents:
            if folder == Path.home():
                break
            if _keeps_stack(folder / STACK_FOLDER / "stack.json"):
                return folder
    return here


def stack_configuration() -> Path | None:
    """Return the configuration with which the stack that `submit up` keeps in the project folder was started, if one was named."""
    record = project_folder() / STACK_FOLDER / "stack.json"
    named = _record_of(record).get("config") if _keeps_stack(record) else None
    return Path(str(named)) if named else None


def _keeps_stack(record: Path) -> bool:
    """Return whether this is the record of a stack that outlives commands."""
    return _record_of(record).get("kept") is True


def _record_of(path: Path) -> dict[str, object]:
    """Return the record of a stack of this user; empty without one."""
    try:
        found = json.loads(path.read_text("utf-8")) if path.stat().st_uid == os.getuid() else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
