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


def _keeps_stack(record: Path) -> bool:
    """Return whether this is the record of a stack of this user that outlives commands."""
    try:
        return record.stat().st_uid == os.getuid() and json.loads(record.read_text("utf-8"))["kept"] is True
    except (OSError, ValueError, LookupError, TypeError):
        return False
