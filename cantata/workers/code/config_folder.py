"""The configuration's folder on this machine."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=64)
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
