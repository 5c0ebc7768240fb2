"""The configuration's folder on this machine, and the environment of the programs that it names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cantata.errors import StepError

BASE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE")
"""The variables of the worker that every program receives: locations, and the formats of times and texts. None may hold a secret."""


def local_folder(folder: str | None) -> str | None:
    """Return a run's folder on this machine: that of its configuration if it exists here, else that of CANTATA_CONFIG."""
    return folder if folder is None or Path(folder).is_dir() else own_config_folder()


def own_config_folder() -> str | None:
    """Return the folder of this worker's own configuration, CANTATA_CONFIG; None if it has none."""
    own = os.environ.get("CANTATA_CONFIG")
    if not own:
        return None
    path = Path(own).resolve()
    return str(path if path.is_dir() else path.parent)


def environment(names: Sequence[str]) -> dict[str, str]:
    """Return the base set and these variables of this worker. Raises StepError if one of these is not set."""
    return {
        **{name: os.environ[name] for name in BASE if name in os.environ},
        **{name: variable(name) for name in names},
    }


def variable(name: str) -> str:
    """Return the value of a variable that a configuration names. Raises StepError if it is not set."""
    if name not in os.environ:
        raise StepError(f"{name} is not set; set it in the environment of the workers")
    return os.environ[name]
